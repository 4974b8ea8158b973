"""How often guesses of a kind come true, learned from every token, drafted or not.

A guess belongs to a cell: how many tokens before it are the same at its source, how far the places agree that it was
copied from, and which source that is. A cell's rate is a beta-binomial estimate that forgets slowly.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Self

SOURCES = ("context", "store")
LONGEST = 64
"""Tokens of a match that are told apart; longer ones count as this long."""
_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_PRIOR = (0.2, 0.35, 0.5, 0.6, 0.7, 0.78, 0.86, 0.9, 0.94, 0.96, 0.98)  # by length, for a lone place
_AGREEMENT = (1.0, 1.25, 0.9, 0.5)  # the prior's factor: a lone place, all of several, most of them, fewer
_PRIOR_WEIGHT = 4.0
_HIGHEST = 0.995
_MEMORY = 2000.0  # guesses of a cell that the shared table remembers
_TRUST = 16.0  # guesses that the shared table counts for in a new text

_LENGTH_CELL = tuple(4 * (bisect_right(_EDGES, length) - 1) for length in range(1, LONGEST + 1))
_CELLS = 4 * len(_EDGES)


def cell_of(source: int, length: int, voters: int, votes: int) -> int:
    """The cell of a guess that ``votes`` of ``voters`` places make after ``length`` equal tokens."""
    if voters == 1:
        agreement = 0
    elif votes == voters:
        agreement = 1
    else:
        agreement = 2 if 2 * votes > voters else 3
    return _CELLS * source + _LENGTH_CELL[min(length, LONGEST) - 1] + agreement


_MOST = 64  # tokens of a draft
_RUNS = [
    [[cell_of(source, length, voters, voters) for length in range(1, LONGEST + _MOST + 1)] for voters in (1, 2)]
    for source in range(len(SOURCES))
]


def run_of_cells(source: int, length: int, several: bool, count: int) -> list[int]:
    """The cells of ``count`` guesses one after the other, the first after ``length`` equal tokens, on which a lone
    place or all of several agree."""
    start = min(length, LONGEST) - 1
    return _RUNS[source][several][start : start + count]


class Survival:
    """The rates of all cells. A text has its own, which starts from the shared one and is folded into it at the end.

    The native matcher learns into the same arrays.
    """

    def __init__(self, rates: Iterable[float], weights: Iterable[float]) -> None:
        self.rates = array("d", rates)
        self.weights = array("d", weights)
        self.hits = array("i", [0] * len(self.rates))
        self.trials = array("i", self.hits)

    @classmethod
    def prior(cls) -> Self:
        rates = [min(rate * factor, _HIGHEST) for rate in _PRIOR for factor in _AGREEMENT] * len(SOURCES)
        return cls(rates, [_PRIOR_WEIGHT] * len(rates))

    def for_text(self) -> Survival:
        return Survival(self.rates, [min(weight, _TRUST) for weight in self.weights])

    def learn(self, cell: int, hit: bool) -> None:
        weight = self.weights[cell] + 1
        self.weights[cell] = weight
        self.rates[cell] += (hit - self.rates[cell]) / weight
        self.hits[cell] += hit
        self.trials[cell] += 1

    def fold(self, text: Survival) -> None:
        """Takes over what a text has counted."""
        for cell, trials in enumerate(text.trials):
            if trials:
                weight = self.weights[cell]
                self.rates[cell] = (self.rates[cell] * weight + text.hits[cell]) / (weight + trials)
                self.weights[cell] = min(weight + trials, _MEMORY)

    def to_json(self) -> dict[str, Any]:
        return {"rates": [round(rate, 5) for rate in self.rates], "weights": list(self.weights)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError or TypeError for what ``to_json`` did not write."""
        rates, weights = [float(rate) for rate in row["rates"]], [float(weight) for weight in row["weights"]]
        fits = len(rates) == len(weights) == _CELLS * len(SOURCES)
        if not fits or not all(0 <= rate <= 1 for rate in rates) or not all(map(_is_weight, weights)):
            raise ValueError("not a table of survival")
        return cls(rates, weights)


def _is_weight(value: float) -> bool:
    return math.isfinite(value) and 0 < value <= _MEMORY
