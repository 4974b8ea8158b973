"""The ``tokenizer.*`` keys of a GGUF file, checked before anything is built from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from edgeinfer.errors import CorruptFile

MAX_TOKENS = 2_000_000
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>", re.ASCII)


class Kind(IntEnum):
    """``tokenizer.ggml.token_type``, in the numbers of ggml."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to metadata; what is wrong raises CorruptFile with the key and its byte offset."""

    metadata: Mapping[str, object]
    path: Path | str
    offset_of: Callable[[str], int | None] = field(default=lambda key: None)

    def corrupt(self, key: str, problem: str) -> CorruptFile:
        return CorruptFile(self.path, key, self.offset_of(key) if key in self.metadata else None, problem)

    def text(self, key: str, default: str = "") -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.corrupt(key, f"found {type(value).__name__}, expected a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.corrupt(key, f"found {value!r:.40}, expected true or false")
        return value

    def token_id(self, key: str, count: int) -> int | None:
        """The id of a special token, or None where the file names none."""
        if key not in self.metadata:
            return None
        value = self.metadata[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.corrupt(key, f"found {value!r:.40}, expected a token id")
        if not 0 <= value < count:
            raise self.corrupt(key, f"token id {value}, but the vocabulary holds 0 to {count - 1}")
        return value

    def array(self, key: str, *types: type) -> Sequence[object]:
        """An array whose items are all of one of ``types``; empty where the key is missing."""
        value = self.metadata.get(key, ())
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise self.corrupt(key, f"found {type(value).__name__}, expected an array")
        strange = set(map(type, value)) - set(types)
        if strange:
            names = " or ".join(item.__name__ for item in types)
            raise self.corrupt(key, f"holds {sorted(item.__name__ for item in strange)[0]} items, expected {names}")
        return value


def read_tokens(fields: Fields) -> list[str]:
    """``tokenizer.ggml.tokens``: distinct texts. An empty one gets the stand-in that llama.cpp gives it."""
    key = "tokenizer.ggml.tokens"
    found = fields.array(key, str)
    if not found:
        raise fields.corrupt(key, "missing or empty; without a vocabulary there is no text")
    if len(found) > MAX_TOKENS:
        raise fields.corrupt(key, f"{len(found)} tokens, at most {MAX_TOKENS} are read")
    tokens = list(map(str, found))
    if "" in tokens:
        tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        for index, text in enumerate(tokens):
            if first.setdefault(text, index) != index:
                raise fields.corrupt(key, f"tokens {first[text]} and {index} have the same text {text!r:.40}")
    return tokens


def read_kinds(fields: Fields, tokens: Sequence[str]) -> list[Kind]:
    """``tokenizer.ggml.token_type``, all NORMAL where it is missing; byte tokens must look like ``<0x0A>``."""
    key = "tokenizer.ggml.token_type"
    found = fields.array(key, int)
    if key not in fields.metadata:
        return [Kind.NORMAL] * len(tokens)
    if len(found) != len(tokens):
        raise fields.corrupt(key, f"{len(found)} items for {len(tokens)} tokens")
    by_number: dict[object, Kind] = {int(kind): kind for kind in Kind}
    strange = set(found) - by_number.keys()
    if strange:
        raise fields.corrupt(key, f"found type {strange.pop()}, expected 0 to {max(Kind):d}")
    kinds = [by_number[number] for number in found]
    for index, kind in enumerate(kinds):
        if kind is Kind.BYTE and not _BYTE_TOKEN.fullmatch(tokens[index]):
            raise fields.corrupt(
                "tokenizer.ggml.tokens", f"byte token {index} is {tokens[index]!r:.40}, expected <0x00> to <0xFF>"
            )
    return kinds


def read_scores(fields: Fields, count: int) -> list[float]:
    """``tokenizer.ggml.scores``: one number a token."""
    key = "tokenizer.ggml.scores"
    found = fields.array(key, float, int)
    if len(found) != count:
        raise fields.corrupt(key, f"{len(found)} items for {count} tokens")
    scores = [float(score) for score in found if isinstance(score, (float, int))]
    if math.isnan(math.fsum(scores)) and any(map(math.isnan, scores)):
        raise fields.corrupt(key, f"the score of token {next(i for i, s in enumerate(scores) if math.isnan(s))} is NaN")
    return scores


def read_merges(fields: Fields, known: Mapping[str, int], visible: Mapping[str, int]) -> list[tuple[str, str]]:
    """``tokenizer.ggml.merges``: pairs of token texts, best first, the first of equal ones kept.

    All of them must name ``known`` tokens; those with a token that is not ``visible`` are left out.
    """
    key = "tokenizer.ggml.merges"
    found = fields.array(key, str)
    if key not in fields.metadata:
        raise fields.corrupt(key, "missing; a byte-pair vocabulary needs its merges")
    pairs: list[tuple[str, str]] = []
    for index, merge in enumerate(dict.fromkeys(map(str, found))):
        left, space, right = merge.partition(" ")
        if not left or not right or not space:
            raise fields.corrupt(key, f"merge {index} is {merge!r:.40}, expected two tokens and a space between")
        if left in visible and right in visible and left + right in visible:
            pairs.append((left, right))
            continue
        missing = next((text for text in (left, right, left + right) if text not in known), None)
        if missing is not None:
            raise fields.corrupt(key, f"merge {index} ({merge!r:.40}) names {missing!r:.40}, which is no token")
    return pairs
