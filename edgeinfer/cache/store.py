"""Sequences that were closed a moment ago, kept in case the next prompt starts the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgeinfer.cache.sequence import CachedSequence


class PrefixStore:
    """The most recently used closed sequences, up to ``budget`` bytes together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: list[CachedSequence] = []  # the latest used last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Pages that several of them share counted once."""
        blocks = {id(block): block.nbytes for sequence in self._kept for block in sequence.blocks}
        return sum(blocks.values()) + sum(layer.nbytes for sequence in self._kept for layer in sequence.layers)

    def put(self, sequence: CachedSequence) -> None:
        """Keeps a closed sequence, in place of older ones that it continues, and drops what exceeds the budget."""
        if not sequence.length:
            return
        self._kept = [old for old in self._kept if sequence.reusable(sequence.common_prefix(old.tokens)) < old.length]
        self._kept.append(sequence)
        while self._kept and self.nbytes > self.budget:
            del self._kept[0]

    def find(self, tokens: Sequence[int], running: Iterable[CachedSequence]) -> CachedSequence | None:
        """A sequence of the longest prefix of ``tokens`` that a kept or a running one holds, the last token left out.

        A kept sequence that is a prefix as a whole is handed over, so that it need not be copied to go on.
        """
        wanted = tokens[:-1]
        candidates = [*running, *self._kept]
        lengths = [each.reusable(each.common_prefix(wanted)) for each in candidates]
        length = max(lengths, default=0)
        if not length:
            return None
        best = candidates[lengths.index(length)]
        if best in self._kept:
            self._kept.remove(best)
            if length == best.length:
                return best
            self._kept.append(best)
        return best.fork(length)

    def clear(self) -> None:
        self._kept.clear()
