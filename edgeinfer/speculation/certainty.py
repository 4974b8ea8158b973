"""How often tokens come true that a drafter was so sure of, learned from every verified draft."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)
_PRIOR = (0.25, 0.42, 0.6, 0.75, 0.87, 0.95)  # by certainty
_PRIOR_WEIGHT = 4.0
_MEMORY = 400.0  # tokens of a kind that are remembered
_PLACES = 8  # of a draft that are told apart when one is only forecast
_PLACE_PRIOR = 0.7
_PRIOR_PROBE = 0.9  # what an unused drafter is given credit for, so that it is tried again
_PROBES = (64, 1024)  # forecasts between two tries, at first and at most


class Learned:
    """A rate for each band of certainty, and one for each place of a draft, given that all before came true.

    It is the scheduler's confidence of DSpark without a trained head. A drafter whose forecasts lead to no drafts is
    tried again now and then, ever more seldom: a text may become easier.
    """

    def __init__(self) -> None:
        self._bands = [[rate, _PRIOR_WEIGHT] for rate in _PRIOR]
        self._places = [[_PLACE_PRIOR, _PRIOR_WEIGHT] for _ in range(_PLACES)]
        self._unused = 0
        self._patience = _PROBES[0]
        self._forecast: list[float] = []  # as long as it holds

    def forecast(self, limit: int) -> Sequence[float]:
        self._unused += 1
        if self._unused > self._patience:
            return [_PRIOR_PROBE] if limit else []
        if len(self._forecast) != limit:
            chances = (self._places[min(place, _PLACES - 1)][0] for place in range(limit))
            self._forecast = list(accumulate(chances, mul))
        return self._forecast

    def survival(self, certainty: Sequence[float]) -> Sequence[float]:
        survival, chance = [], 1.0
        for each in certainty:
            chance *= self._bands[bisect_right(_EDGES, each)][0]
            survival.append(chance)
        return survival

    def learn(self, certainty: Sequence[float], accepted: int) -> None:
        if self._unused > self._patience:
            self._patience = _PROBES[0] if accepted else min(2 * self._patience, _PROBES[1])
        self._unused = 0
        self._forecast = []
        for place, each in enumerate(certainty[: accepted + 1]):
            for cell in (self._bands[bisect_right(_EDGES, each)], self._places[min(place, _PLACES - 1)]):
                cell[1] = min(cell[1] + 1, _MEMORY)
                cell[0] += ((place < accepted) - cell[0]) / cell[1]

    def to_json(self) -> Any:
        return [[[round(rate, 5), weight] for rate, weight in rows] for rows in (self._bands, self._places)]

    def restore(self, rows: Any) -> None:
        """Raises ValueError or TypeError for what ``to_json`` did not write; changes nothing then."""
        bands, places = ([[float(rate), float(weight)] for rate, weight in part] for part in rows)
        fits = len(bands) == len(_PRIOR) and len(places) == _PLACES
        if not fits or not all(0 <= rate <= 1 and 0 < weight <= _MEMORY for rate, weight in bands + places):
            raise ValueError("not a table of certainty")
        self._bands, self._places, self._forecast = bands, places, []


class Price:
    """Seconds that making a draft takes: its first token, and each one after it, by normalized least squares."""

    _PACE = 0.3
    _CLAMP = 2.0

    def __init__(self, first: float, more: float) -> None:
        """In plain steps, before anything was measured."""
        self._prior = (first, more)
        self._seconds: tuple[float, float] | None = None

    def of(self, limit: int, plain: float) -> list[float]:
        """What each of ``limit`` tokens adds, in plain steps of ``plain`` seconds."""
        first, more = self._prior if self._seconds is None else (each / plain for each in self._seconds)
        return [first, *([more] * (limit - 1))][:limit]

    def learn(self, tokens: int, seconds: float, plain: float) -> None:
        first, more = self._seconds or (self._prior[0] * plain, self._prior[1] * plain)
        expected = first + (tokens - 1) * more
        error = min(max(seconds, expected / self._CLAMP), expected * self._CLAMP) - expected
        share = self._PACE * error / (1 + (tokens - 1) ** 2)
        self._seconds = (max(first + share, 0.0), max(more + share * (tokens - 1), 0.0))
