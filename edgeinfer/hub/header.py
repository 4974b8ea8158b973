"""What a GGUF file says of itself, from its header alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.converted.opening import open_model
from edgeinfer.formats.gguf import GGUFFile

SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding")
_ROPE = ("freq_base", "freq_base_swa", "dimension_count", "scaling.type", "scaling.factor")


@dataclass(frozen=True, slots=True)
class QuantShare:
    """One block format of a file: how many tensors and bytes are stored in it."""

    codec: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The facts about a model that its header holds; empty or 0 where it does not say."""

    title: str
    architecture: str
    license: str
    parameters: int
    context: int  # tokens it was trained for
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    vocab_size: int
    tokenizer: str
    rope: dict[str, str]
    special: dict[str, tuple[int, str]]  # role: id, text
    template: str
    mix: tuple[QuantShare, ...]  # most bytes first

    @property
    def quant(self) -> str:
        """The block format that most bytes are stored in."""
        return self.mix[0].codec.upper() if self.mix else ""


def read_header(path: Path) -> Header:
    """Opens a GGUF file and reads no weights. Raises CorruptFile or UnsupportedModel."""
    with open_model(path) as file:
        return describe(file)


def describe(file: GGUFFile) -> Header:
    architecture = _text(file, "general.architecture")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    vocabulary = tokens if isinstance(tokens, list) else []
    rope = {key: _text(file, f"{architecture}.rope.{key}") for key in _ROPE}
    return Header(
        title=_text(file, "general.name"),
        architecture=architecture,
        license=_text(file, "general.license"),
        parameters=file.parameters,
        context=_number(file, f"{architecture}.context_length"),
        layers=_number(file, f"{architecture}.block_count"),
        embedding=_number(file, f"{architecture}.embedding_length"),
        heads=_number(file, f"{architecture}.attention.head_count"),
        kv_heads=_number(file, f"{architecture}.attention.head_count_kv"),
        vocab_size=len(vocabulary),
        tokenizer=" ".join(filter(None, (_text(file, "tokenizer.ggml.model"), _text(file, "tokenizer.ggml.pre")))),
        rope={key: value for key, value in rope.items() if value},
        special=_special(file, [str(token) for token in vocabulary]),
        template=_text(file, "tokenizer.chat_template"),
        mix=_mix(file),
    )


def _text(file: GGUFFile, key: str) -> str:
    value = file.metadata.get(key, "")
    return "" if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value)


def _number(file: GGUFFile, key: str) -> int:
    """A whole number, the largest one where there is one a layer."""
    value = file.metadata.get(key, 0)
    values = value if isinstance(value, list) else [value]
    return max((number for number in values if isinstance(number, int)), default=0)


def _special(file: GGUFFile, vocabulary: list[str]) -> dict[str, tuple[int, str]]:
    found = {}
    for role in SPECIAL:
        number = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(number, int) and 0 <= number < len(vocabulary):
            found[role] = (number, vocabulary[number])
    return found


def _mix(file: GGUFFile) -> tuple[QuantShare, ...]:
    tensors: dict[str, int] = {}
    stored: dict[str, int] = {}
    for info in file.tensors.values():
        tensors[info.codec.name] = tensors.get(info.codec.name, 0) + 1
        stored[info.codec.name] = stored.get(info.codec.name, 0) + info.nbytes
    shares = (QuantShare(name, tensors[name], stored[name]) for name in stored)
    return tuple(sorted(shares, key=lambda share: -share.bytes))
