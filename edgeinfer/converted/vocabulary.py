"""``tokenizer.json`` and its companions as the ``tokenizer.*`` metadata of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeinfer.converted.folder import read_json
from edgeinfer.errors import CorruptFile, UnsupportedModel
from edgeinfer.formats.cursor import shown

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types of ggml
MAX_TOKENS = 2_000_000
MAX_TEMPLATE = 1 << 20  # characters
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}": "llama-bpe",
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}": "qwen2",
    (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_END}"
    ): "qwen35",
    _CASED.replace("@", _CONTRACTION + "?") + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}": "gpt-4o",
    _CASED.replace("@", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}": "tekken",
}
"""The published rules by which text is cut before merging: pattern -> their name in GGUF."""
_WHOLE = ("llama-bpe", "tekken")
"""Rules under which a word that is a token is taken whole, whatever the merges (``ignore_merges``)."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>", re.ASCII)
_SHOWN = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
"""Special tokens of Gemma 4 that are part of what it says; llama.cpp's files have them as text too."""


def vocabulary(folder: Path, architecture: str, rows: int) -> dict[str, Any]:
    """The metadata of a tokenizer with as many tokens as the embedding has rows, and the chat templates.

    Raises UnsupportedModel for another kind of tokenizer than BPE, or one whose rules are not known, and CorruptFile.
    """
    return _Reader(folder, architecture, rows).metadata()


class _Reader:
    def __init__(self, folder: Path, architecture: str, rows: int) -> None:
        self.path = folder / "tokenizer.json"
        self.architecture = architecture
        self.folder = folder
        self.rows = rows
        self.file = read_json(self.path)
        self.config = read_json(folder / "tokenizer_config.json")
        if not self.file:
            raise UnsupportedModel(f"{folder.name}: tokenizer.json is missing; without it there is no text", folder)
        model = self.file.get("model")
        self.model: Mapping[str, Any] = model if isinstance(model, dict) else {}
        if self.model.get("type", "BPE") != "BPE" or not isinstance(self.model.get("vocab"), dict):
            raise self.unsupported("model.type", self.model.get("type"), "BPE")

    def metadata(self) -> dict[str, Any]:
        tokens, types = self._tokens()
        ids = {text: index for index, text in enumerate(tokens)}
        found: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
        merges = self._merges()
        if self.model.get("byte_fallback"):
            found |= self._spaced(tokens, types, merges)
        else:
            found |= {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": self._rule(),
                "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
            }
        found["tokenizer.ggml.token_type"] = types
        return found | self._special(ids) | self._templates()

    def unsupported(self, key: str, value: object, supported: str) -> UnsupportedModel:
        found = shown(f"{value!r}")
        return UnsupportedModel(f"{self.path.name}: {key}: {found}; supported: {supported}", self.path, key, value)

    def corrupt(self, key: str, problem: str) -> CorruptFile:
        return CorruptFile(self.path, key, None, problem)

    def _tokens(self) -> tuple[list[str], list[int]]:
        """Texts and types; rows of the embedding that no token names are unused."""
        vocab: Mapping[str, Any] = self.model["vocab"]
        added = self.file.get("added_tokens") or []
        if self.rows > MAX_TOKENS or not isinstance(added, list):
            raise self.corrupt("added_tokens", "expected a list")
        tokens: list[str | None] = [None] * self.rows
        types = [UNUSED] * self.rows
        for text, index in vocab.items():
            self._place(tokens, text, index)
            types[index] = BYTE if self.model.get("byte_fallback") and _BYTE_TOKEN.fullmatch(text) else NORMAL
        for row in added:
            if not isinstance(row, dict) or not isinstance(row.get("content"), str):
                raise self.corrupt("added_tokens", f"{row!r:.60}; expected id, content and special")
            text, index = row["content"], row.get("id")
            if vocab.get(text, index) != index:
                raise self.corrupt("added_tokens", f"{shown(text)!r} has the ids {vocab[text]} and {index}")
            self._place(tokens, text, index)
            shows = self.architecture == "gemma4" and text in _SHOWN
            types[index] = CONTROL if row.get("special") and not shows else USER_DEFINED
        unknown = self.model.get("unk_token")
        if self.model.get("byte_fallback") and isinstance(unknown, str) and unknown in vocab:
            types[vocab[unknown]] = UNKNOWN
        return [f"[PAD{index}]" if text is None else text for index, text in enumerate(tokens)], types

    def _place(self, tokens: list[str | None], text: object, index: object) -> None:
        if not isinstance(text, str) or type(index) is not int:
            raise self.corrupt("model.vocab", f"{text!r:.40}: {index!r:.40}; expected an id for each text")
        if not 0 <= index < len(tokens):
            raise self.corrupt("model.vocab", f"token {index}, but the embedding has {len(tokens)} rows")
        if tokens[index] not in (None, text):
            raise self.corrupt("model.vocab", f"{shown(tokens[index] or '')!r} and {shown(text)!r} are both {index}")
        tokens[index] = text

    def _merges(self) -> list[tuple[str, str]]:
        merges = self.model.get("merges")
        if not isinstance(merges, list):
            raise self.corrupt("model.merges", "missing; expected pairs of texts")
        pairs = [tuple(each.split(" ", 1)) if isinstance(each, str) else tuple(each or ()) for each in merges]
        vocab = self.model["vocab"]
        for pair in pairs:
            if len(pair) != 2 or not all(isinstance(each, str) and each in vocab for each in pair):
                raise self.corrupt("model.merges", f"{pair!r:.60}; expected two tokens of the vocabulary")
        return [(first, second) for first, second in pairs]

    def _rule(self) -> str:
        """The name of the rules by which text is cut, from those that the file spells out."""
        normalizer = self.file.get("normalizer")
        if normalizer is not None and normalizer.get("type") not in ("NFC",):
            raise self.unsupported("normalizer", normalizer.get("type"), "none, NFC")
        before = self.file.get("pre_tokenizer") or {}
        steps = before.get("pretokenizers", [before])
        kinds = [step.get("type") for step in steps if isinstance(step, dict)]
        if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") and steps[1].get("use_regex", True):
            return "smollm"
        if kinds == ["Split", "ByteLevel"] and steps[0].get("behavior") == "Isolated":
            pattern = (steps[0].get("pattern") or {}).get("Regex")
            if pattern in SPLITS and not steps[1].get("use_regex"):
                return self._merging(SPLITS[pattern])
        raise self.unsupported("pre_tokenizer", before, f"the rules named {', '.join(SPLITS.values())}, gpt-2, smollm")

    def _merging(self, rule: str) -> str:
        """The rule that cuts alike and merges as the file says."""
        ignores = bool(self.model.get("ignore_merges"))
        if ignores is (rule in _WHOLE):
            return rule
        if rule == "llama-bpe":
            return "smaug-bpe"
        raise self.unsupported("model.ignore_merges", ignores, f"{rule in _WHOLE} with the rule {rule}")

    def _spaced(self, tokens: list[str], types: list[int], merges: list[tuple[str, str]]) -> dict[str, Any]:
        """SentencePiece's kind: a token's score is the rank of the merge that makes it, the first ones highest."""
        if self.architecture == "gemma4":
            pairs = [" ".join(pair) for pair in merges]
            return {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": pairs}
        ranks: dict[str, int] = {}
        for rank, (first, second) in enumerate(merges):
            ranks.setdefault(first + second, rank)
        scores = [float(-ranks.get(text, len(merges))) for text in tokens]
        prepends = '"Prepend"' in _text_of(self.file.get("normalizer"))
        before = self.file.get("pre_tokenizer") or {}
        if before.get("type") == "Metaspace":
            prepends = before.get("prepend_scheme", "always") != "never"
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.add_space_prefix": prepends,
        }

    def _special(self, ids: Mapping[str, int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("bos", "eos", "unk", "pad"):
            value = self.config.get(f"{name}_token")
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text in ids:
                key = {"unk": "unknown", "pad": "padding"}.get(name, name)
                found[f"tokenizer.ggml.{key}_token_id"] = ids[text]
        ends = read_json(self.folder / "generation_config.json").get("eos_token_id")
        ends = ends if ends is not None else read_json(self.folder / "config.json").get("eos_token_id")
        ends = [end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int and 0 <= end < len(ids)]
        if ends:
            found.setdefault("tokenizer.ggml.eos_token_id", ends[0])
        if others := [end for end in ends if end != found["tokenizer.ggml.eos_token_id"]]:
            found["tokenizer.ggml.eot_token_id"] = others[0]
        bos = next((text for text, index in ids.items() if index == found.get("tokenizer.ggml.bos_token_id")), None)
        adds = self.config.get("add_bos_token")
        if not isinstance(adds, bool):
            adds = bos is not None and _quoted(bos) in _text_of(self.file.get("post_processor"))
        return found | {"tokenizer.ggml.add_bos_token": adds}

    def _templates(self) -> dict[str, Any]:
        """The chat template of a file of its own, or those in tokenizer_config.json."""
        own = self.folder / "chat_template.jinja"
        try:
            given: object = own.read_text(encoding="utf-8") if own.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptFile(own, "file", None, f"cannot be read: {error}") from None
        given = given or read_json(self.folder / "chat_template.json").get("chat_template")
        given = given or self.config.get("chat_template")
        rows = given if isinstance(given, list) else [{"name": "default", "template": given}]
        found: dict[str, Any] = {}
        for row in rows:
            name, text = (row.get("name"), row.get("template")) if isinstance(row, dict) else (None, None)
            if isinstance(name, str) and isinstance(text, str) and len(text) <= MAX_TEMPLATE:
                found["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
        return found


def _text_of(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    return _text_of(text)
