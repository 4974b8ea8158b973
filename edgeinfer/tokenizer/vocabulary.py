"""Text to token ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from edgeinfer.errors import BadRequest, UnsupportedModel
from edgeinfer.tokenizer.bytelevel import ByteLevelBPE
from edgeinfer.tokenizer.metadata import Fields, Kind, read_kinds, read_merges, read_scores, read_tokens
from edgeinfer.tokenizer.pretokenizers import PRETOKENIZERS
from edgeinfer.tokenizer.sentencepiece import SentencePieceBPE
from edgeinfer.tokenizer.spacedbpe import SpacedBPE
from edgeinfer.tokenizer.specials import Partition, find_ends, find_strips

_SURROGATES = re.compile("[\ud800-\udfff]")
_HIDDEN = (Kind.CONTROL, Kind.UNKNOWN)
_SILENT = (Kind.UNUSED, Kind.UNDEFINED)


class Encoder(Protocol):
    """Merges plain text into ids, and knows how a normal token writes its bytes."""

    def encode(self, text: str, after_special: bool) -> list[int]: ...
    def decode_text(self, text: str) -> bytes: ...


_SPARE = 128  # rows that models of one family pad their embeddings by, as llama.cpp allows for


class Tokenizer:
    """A vocabulary with its rules. Gives llama.cpp's ids, except that plain text can never spell a control token.

    ``vocab_size`` counts the tokens of the file; ``bos_id`` and ``eos_id`` are None where the file names none (not
    llama.cpp's guess: tokens 1 and 2, or 11); ``add_bos`` and ``add_eos`` say whether a prompt begins and ends with
    them; ``end_ids`` are all tokens that end a generation, and may be empty; ``control_tokens`` maps the texts that
    become control tokens with ``special=True``.
    """

    def __init__(self, fields: Fields) -> None:
        build = _MODELS.get(fields.text("tokenizer.ggml.model"))
        if build is None:
            raise _unsupported(fields, "tokenizer.ggml.model", ", ".join(sorted(_MODELS)))
        tokens = read_tokens(fields)
        ids = {text: index for index, text in enumerate(tokens)}
        kinds = read_kinds(fields, tokens)
        count = len(tokens)
        self.vocab_size = count
        self.bos_id = fields.token_id("tokenizer.ggml.bos_token_id", count)
        self.eos_id = fields.token_id("tokenizer.ggml.eos_token_id", count)
        self.end_ids = find_ends(fields, tokens, ids, kinds)
        self._tokens = tokens
        self._kinds = kinds
        self._pieces: dict[int, bytes] = {}

        control = {tokens[index]: index for index, kind in enumerate(kinds) if kind in _HIDDEN}
        user_defined = {tokens[index]: index for index, kind in enumerate(kinds) if kind is Kind.USER_DEFINED}
        self.control_tokens: Mapping[str, int] = MappingProxyType(control)
        strips = find_strips(fields, ids, [*control.values(), *user_defined.values()])
        self._control = Partition(control)
        self._plain = Partition(user_defined, *strips)
        every = dict(sorted((control | user_defined).items(), key=lambda item: item[1]))
        self._special = Partition(every, *strips)

        visible = dict(ids)
        for text in control:
            del visible[text]
        self._encoder, self.add_bos, self.space_prefix = build(fields, ids, visible)
        self.add_eos = fields.flag("tokenizer.ggml.add_eos_token", False)

    def difference(self, other: Tokenizer) -> str:
        """Why ids of ``other`` do not mean the same; "" where they do. It may have a few more or fewer at the end."""
        if abs(self.vocab_size - other.vocab_size) > _SPARE:
            return f"its vocabulary has {other.vocab_size:,} tokens, not {self.vocab_size:,}"
        pairs = enumerate(zip(self._tokens, other._tokens, strict=False))
        index = next((index for index, (mine, its) in pairs if mine != its), None)
        if index is None:
            return ""
        return f"its token {index} is {other._tokens[index][:40]!r}, not {self._tokens[index][:40]!r}"

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, object],
        path: Path | str,
        offset_of: Callable[[str], int | None] = lambda key: None,
    ) -> Tokenizer:
        """The tokenizer that a file describes; ``offset_of`` gives the byte of a key, for messages.

        Raises UnsupportedModel for an unknown ``tokenizer.ggml.model`` or ``.pre``, CorruptFile for broken arrays. A
        byte-level vocabulary without ``.pre`` (files older than May 2024) gets the rule named "default", as in
        llama.cpp.
        """
        return cls(Fields(metadata, path, offset_of))

    def encode(self, text: str, special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of a text.

        special: text that spells a control token becomes that token; otherwise it stays text, whatever it spells.
        User-defined tokens match either way. add_bos: begin with BOS and end with EOS where the file wishes it.
        A lone surrogate, which is no character, counts as U+FFFD.
        """
        found: list[int] = []
        if add_bos and self.add_bos and self.bos_id is not None:
            found.append(self.bos_id)
        after_special = True
        for piece in self.split(text, special):
            if isinstance(piece, int):
                found.append(piece)
            else:
                found += self._encoder.encode(piece, after_special)
            after_special = isinstance(piece, int)
        if add_bos and self.add_eos and self.eos_id is not None:
            found.append(self.eos_id)
        return found

    def split(self, text: str, special: bool = True) -> list[str | int]:
        """Plain text (never empty) and the ids of the special tokens between, in order, as ``encode`` cuts it.

        Without ``special`` only user-defined tokens count.
        """
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        return (self._special if special else self._plain).split(text)

    def decode(self, ids: Sequence[int], special: bool = True, continues: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.

        special: control tokens show their text, otherwise they show nothing. continues: the ids go on from earlier
        ones, so the space that a SentencePiece vocabulary puts before a text is part of them and stays.
        """
        pieces = [self.piece(index, special) for index in ids]
        if pieces and self.space_prefix and not continues:
            pieces[0] = pieces[0].removeprefix(b" ")
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, index: int, special: bool = True) -> bytes:
        """The bytes that a token adds to a text."""
        return b"" if not special and self.is_control(index) else self.token_bytes(index)

    def token_bytes(self, index: int) -> bytes:
        """The bytes of one token: of a character, if need be only a part. Raises BadRequest for an unknown id."""
        found = self._pieces.get(index)
        if found is None:
            found = self._pieces[index] = self._spell(index)
        return found

    def _spell(self, index: int) -> bytes:
        if not 0 <= index < self.vocab_size:
            raise BadRequest(f"token id {index}: the vocabulary holds 0 to {self.vocab_size - 1}", "ids")
        text, kind = self._tokens[index], self._kinds[index]
        if kind is Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind in _SILENT:
            return b""
        return self._encoder.decode_text(text) if kind is Kind.NORMAL else text.encode()

    def token_text(self, index: int) -> str:
        """One token, for display."""
        return self.token_bytes(index).decode("utf-8", "replace")

    def is_control(self, index: int) -> bool:
        """Whether the token steers the model and is no text: control tokens and the unknown token."""
        return 0 <= index < self.vocab_size and self._kinds[index] in _HIDDEN

    def lookalikes(self, text: str) -> list[str]:
        """Texts of control tokens that occur in a text, in order: worth a warning, although they stay text."""
        found = (piece for piece in self._control.split(text) if isinstance(piece, int))
        return [self._tokens[index] for index in dict.fromkeys(found)]


_Built = tuple[Encoder, bool, bool]  # the encoder; whether BOS is wished; whether a space goes before a text


def _byte_pair(fields: Fields, ids: Mapping[str, int], visible: Mapping[str, int], pre: str = "") -> _Built:
    rule = PRETOKENIZERS.get(pre or fields.text("tokenizer.ggml.pre") or "default")
    if rule is None:
        raise _unsupported(fields, "tokenizer.ggml.pre", f"one of the {len(PRETOKENIZERS)} published rules")
    merges = read_merges(fields, ids, visible)
    add_bos = fields.flag("tokenizer.ggml.add_bos_token", rule.add_bos) or rule.forces_bos
    space_prefix = fields.flag("tokenizer.ggml.add_space_prefix", False)
    if not rule.spaced:
        return ByteLevelBPE(visible, merges, rule, len(ids)), add_bos, space_prefix
    _byte_ids(fields, visible)
    return SpacedBPE(visible, merges, rule.whole_newlines), add_bos, space_prefix


def _sentence_piece(fields: Fields, ids: Mapping[str, int], visible: Mapping[str, int]) -> _Built:
    space_prefix = fields.flag("tokenizer.ggml.add_space_prefix", True)
    scores = read_scores(fields, len(ids))
    encoder = SentencePieceBPE(visible, scores, _byte_ids(fields, visible), space_prefix)
    return encoder, fields.flag("tokenizer.ggml.add_bos_token", True), space_prefix


def _byte_ids(fields: Fields, visible: Mapping[str, int]) -> list[int]:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    missing = next((name for name in names if name not in visible), None)
    if missing is not None:
        raise fields.corrupt("tokenizer.ggml.tokens", f"no byte token {missing}; expected <0x00> to <0xFF>")
    return [visible[name] for name in names]


_MODELS: dict[str, Callable[[Fields, Mapping[str, int], Mapping[str, int]], _Built]] = {
    "gpt2": _byte_pair,
    "gemma4": partial(_byte_pair, pre="gemma4"),
    "llama": _sentence_piece,
}


def _unsupported(fields: Fields, key: str, expected: str) -> UnsupportedModel:
    value = fields.text(key)
    message = (
        f"{Path(fields.path).name}: {key}={value!r:.60}; supported: {expected}; "
        "other rules would give wrong tokens, a newer edgeinfer may know this one"
    )
    return UnsupportedModel(message, fields.path, key, value)
