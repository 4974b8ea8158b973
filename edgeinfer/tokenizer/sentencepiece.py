"""SentencePiece's BPE (Llama 2, Gemma, TinyLlama): neighbours merge into the token with the best score.

The ``tokenizers`` library cannot do this exactly. Its merges have a strict order, while here two places with equal
scores merge from the left: in Gemma 6,415 tokens share one score, and runs of spaces depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

SPACE = "▁"
_CACHED_WORDS = 1 << 15
_LONGEST_CACHED = 48


class SentencePieceBPE:
    """Merging by score, ties from the left, in the way of llama.cpp's ``llm_tokenizer_spm``."""

    def __init__(
        self,
        visible: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Sequence[int],
        space_prefix: bool,
    ) -> None:
        """``visible`` tokens may come out of text; ``byte_ids`` spell a character that no token holds."""
        self._ids = visible
        self._costs = [-score for score in scores]
        self._bytes = byte_ids
        self._space_prefix = space_prefix
        self._words = _word_border(self._ids)
        self._merge_cached = lru_cache(_CACHED_WORDS)(self._merge)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of plain text. Where the vocabulary wants it, a space goes before text that follows a special token."""
        if self._space_prefix and after_special:
            text = " " + text
        found: list[int] = []
        for word in self._words.split(text.replace(" ", SPACE)):
            found += self._merge_cached(word) if len(word) <= _LONGEST_CACHED else self._merge(word)
        return found

    def _merge(self, word: str) -> tuple[int, ...]:
        parts = list(word)
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        ids, costs = self._ids, self._costs
        queue = [
            (costs[ids[pair]], left, left + 1, 2)
            for left, pair in enumerate(map("".join, pairwise(parts)))
            if pair in ids
        ]
        heapify(queue)
        while queue:
            _, left, right, size = heappop(queue)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != size:
                continue  # one of them has merged since
            parts[left] += parts[right]
            parts[right] = ""
            beyond = after[left] = after[right]
            if beyond >= 0:
                before[beyond] = left
            for a, b in ((before[left], left), (left, beyond)):
                if a >= 0 and b >= 0:
                    pair = parts[a] + parts[b]
                    if pair in ids:
                        heappush(queue, (costs[ids[pair]], a, b, len(pair)))
        return tuple(index for part in parts if part for index in self._spelled(part))

    def _spelled(self, part: str) -> Sequence[int]:
        index = self._ids.get(part)
        return [self._bytes[byte] for byte in part.encode()] if index is None else (index,)

    @staticmethod
    def decode_text(text: str) -> bytes:
        """The bytes that a normal token's text stands for."""
        return text.replace(SPACE, " ").encode()


def _word_border(tokens: Collection[str]) -> re.Pattern[str]:
    """Before a space, where no token reaches across: words that are merged, and remembered, on their own."""
    crossing = {text[at - 1] for text in tokens if text.find(SPACE, 1) > 0 for at in _spaces_within(text)}
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(crossing | {SPACE})))}])(?={SPACE})")


def _spaces_within(text: str) -> list[int]:
    return [at for at in range(1, len(text)) if text[at] == SPACE]
