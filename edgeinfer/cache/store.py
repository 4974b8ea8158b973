"""Sequences that were closed a moment ago, kept in case the next prompt starts the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgeinfer.cache.sequence import CachedSequence

MOST_KEPT = 128
"""Sequences: a search looks at every one of them, and tiny ones would otherwise be kept by the thousand."""


class PrefixStore:
    """The most recently used closed sequences, up to ``budget`` bytes together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[CachedSequence, int] = {}  # with the bytes of its layers; the latest used last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Pages that several of them share counted once."""
        blocks = {id(block): block.nbytes for sequence in self._kept for block in sequence.blocks}
        return sum(blocks.values()) + sum(self._kept.values())

    def put(self, sequence: CachedSequence) -> None:
        """Keeps a closed sequence, in place of older ones that it continues, and drops what exceeds the budget."""
        if not sequence.length:
            return
        for old in [old for old in self._kept if _continues(sequence, old)]:
            del self._kept[old]
        self._kept[sequence] = sum(layer.nbytes for layer in sequence.layers)
        while self._kept and (len(self._kept) > MOST_KEPT or self.nbytes > self.budget):
            del self._kept[next(iter(self._kept))]

    def find(self, tokens: Sequence[int], running: Iterable[CachedSequence]) -> CachedSequence | None:
        """A sequence of the longest prefix of ``tokens`` that a kept or a running one holds, the last token left out.

        A kept sequence that is a prefix as a whole is handed over, so that it need not be copied to go on.
        """
        wanted = tokens[:-1]
        shared = [(each.common_prefix(wanted), each) for each in (*running, *self._kept)]
        shared.sort(key=lambda pair: pair[0], reverse=True)
        best, length = None, 0
        for common, each in shared:
            if common <= length:
                break  # none of the others can give more
            if (usable := each.reusable(common)) > length:
                best, length = each, usable
        if best is None:
            return None
        if best in self._kept:
            size = self._kept.pop(best)
            if length == best.length:
                return best
            self._kept[best] = size
        return best.fork(length)

    def clear(self) -> None:
        self._kept.clear()


def _continues(sequence: CachedSequence, old: CachedSequence) -> bool:
    common = sequence.common_prefix(old.tokens)
    return common == old.length and sequence.reusable(common) == common
