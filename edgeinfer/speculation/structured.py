"""Drafts that a grammar forces: the keys and signs of a schema, the rest of a choice.

What is forced is usually spelled one way, but a model may spell it another: such a draft is verified like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.speculation.drafter import EMPTY, Draft, Grammar

_PRIOR = {True: 0.95, False: 0.7}
_WEIGHT, _MEMORY = 8.0, 200.0


class StructuredDrafter:
    """``rates``: how often tokens come true that are spelled as they must be, and those that only usually are."""

    name = "structured"

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._rates = {sure: [rate, _WEIGHT] for sure, rate in _PRIOR.items()}
        self._last: list[tuple[int, bool]] = []

    def propose(self, limit: int) -> Draft:
        sure, usual = self._grammar.forced()
        self._last = [*((token, True) for token in sure), *((token, False) for token in usual)][:limit]
        if not self._last:
            return EMPTY
        survival, chance = [], 1.0
        for _, certain in self._last:
            chance *= self._rates[certain][0]
            survival.append(chance)
        return Draft([token for token, _ in self._last], survival)

    def observe(self, tokens: Sequence[int]) -> None:
        for token, (guess, certain) in zip(tokens, self._last, strict=False):
            cell = self._rates[certain]
            cell[1] = min(cell[1] + 1, _MEMORY)
            cell[0] += ((token == guess) - cell[0]) / cell[1]
            if token != guess:
                break
        self._last = []

    def close(self) -> None:
        self._last = []
