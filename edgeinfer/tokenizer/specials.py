"""Tokens that are matched by their text before any merging, and the ones that end a generation.

The tables and the order of matching are llama.cpp's (``llama-vocab.cpp``). One thing is stricter here: a token whose
file calls it a control token stays one. llama.cpp turns a few of them (``<|start|>``, ``<|channel|>``, ``<|message|>``,
``<|constrain|>``, ``<|end|>`` of gpt-oss) into user-defined tokens, which plain text can then spell.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from edgeinfer.tokenizer.metadata import Fields, Kind

END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
        "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    }
)  # fmt: skip
"""Texts that end a generation wherever a vocabulary has them, whatever its keys say."""

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class FillRole(NamedTuple):
    """A token for filling in the middle of a text, by its keys or else by a text of its own."""

    keys: tuple[str, ...]
    is_end: bool  # it ends a generation
    texts: tuple[str, ...]


_FILL_ROLES = (
    FillRole(
        ("fim_pre_token_id", "prefix_token_id"),
        False,
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    FillRole(
        ("fim_suf_token_id", "suffix_token_id"),
        False,
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    FillRole(
        ("fim_mid_token_id", "middle_token_id"),
        False,
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
    FillRole(("fim_pad_token_id",), True, ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    FillRole(("fim_rep_token_id",), True, ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    FillRole(("fim_sep_token_id",), True, ("<|file_sep|>",)),
)

# (all of these present, this one then ends nothing): harmony and solar-open close a message with <|end|>, not a turn.
_NOT_AN_END: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|return|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
    (frozenset({"<|plamo:eos|>"}), "</s>"),
)


def find_ends(fields: Fields, tokens: Sequence[str], ids: Mapping[str, int], kinds: list[Kind]) -> frozenset[int]:
    """Ids that end a generation. Marks them, and the fill-in-the-middle tokens, as control tokens in ``kinds``."""
    ends = set(_keyed(fields, _END_KEYS, len(kinds)))
    for role in _FILL_ROLES:
        found = _keyed(fields, role.keys, len(kinds))
        if not found:
            found = [ids[text] for text in role.texts if text in ids][:1]
            for index in found:
                kinds[index] = Kind.CONTROL
        if role.is_end:
            ends.update(found)
    for text in END_TEXTS & ids.keys():
        ends.add(ids[text])
        kinds[ids[text]] = Kind.CONTROL
    ending = {tokens[index] for index in ends}
    for present, text in _NOT_AN_END:
        if present <= ending and text in ids:
            ends.discard(ids[text])
    return frozenset(ends)


def _keyed(fields: Fields, keys: Sequence[str], count: int) -> list[int]:
    found = (fields.token_id(f"tokenizer.ggml.{key}", count) for key in keys)
    return [index for index in found if index is not None]


def find_strips(fields: Fields, ids: Mapping[str, int], special: Sequence[int]) -> tuple[set[int], set[int]]:
    """Ids that swallow the white space on their left, and on their right. GGUF does not carry it: known by name."""
    rule = fields.text("tokenizer.ggml.pre")
    name = fields.text("general.name").lower()
    if any(known in rule for known in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return {ids[text] for text in ("<mask>",) if text in ids}, set()
    if "phi-3" in name or "phi3" in name:
        keep = {ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
        also = {ids[text] for text in ("</s>",) if text in ids}
        return set(), {*special, *also} - keep
    if "modern-bert" in name:
        return {ids[text] for text in ("[MASK]",) if text in ids}, set()
    return set(), set()


_WHITE = " \t\n\v\f\r"  # C's isspace


class Partition:
    """Cuts text at special tokens as llama.cpp does: the longest token takes all its places first.

    Longest counts in bytes of UTF-8; of equally long ones the first of the vocabulary.
    """

    def __init__(self, ids: Mapping[str, int], left: Collection[int] = (), right: Collection[int] = ()) -> None:
        """ids: texts and their tokens. left, right: tokens that swallow the white space on that side of them."""
        self._ids = ids
        self._left = left
        self._right = right
        self._texts = sorted(ids, key=lambda text: -len(text.encode()))
        self._rank = {text: rank for rank, text in enumerate(self._texts)}
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._starts = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if ids else None

    def split(self, text: str) -> list[str | int]:
        """Pieces in order: plain text (never empty) and token ids."""
        pieces: list[str | int] = []
        at = 0
        for start, stop, index in self._cuts(text):
            if at < start:
                pieces.append(text[at:start])
            pieces.append(index)
            at = stop
        if at < len(text):
            pieces.append(text[at:])
        return pieces

    def _cuts(self, text: str) -> list[tuple[int, int, int]]:
        """Where tokens lie, white space that they swallow included, in order: (start, stop, id)."""
        if self._starts is None:
            return []
        starts = (match.start() for match in self._starts.finditer(text))
        queue = [(rank, start) for start in starts if (rank := self._longest(text, start)) is not None]
        heapify(queue)
        taken = bytearray(len(text))
        cuts = []
        while queue:
            rank, start = heappop(queue)
            stop = start + len(self._texts[rank])
            if taken[start]:
                continue
            if taken.find(1, start, stop) >= 0:
                if (shorter := self._longest(text, start, stop - start)) is not None:
                    heappush(queue, (shorter, start))
                continue
            index = self._ids[self._texts[rank]]
            while index in self._left and start and not taken[start - 1] and text[start - 1] in _WHITE:
                start -= 1
            while index in self._right and stop < len(text) and not taken[stop] and text[stop] in _WHITE:
                stop += 1
            taken[start:stop] = b"\1" * (stop - start)
            cuts.append((start, stop, index))
        return sorted(cuts)

    def _longest(self, text: str, start: int, below: int = sys.maxsize) -> int | None:
        """The rank of the longest token of fewer than ``below`` characters that stands at ``start``."""
        for length in self._lengths[text[start]]:
            if length < below and (rank := self._rank.get(text[start : start + length])) is not None:
                return rank
        return None
