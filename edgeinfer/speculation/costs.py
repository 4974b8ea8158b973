"""What steps cost on this machine: a plain one, and one that verifies so many rows, learned while decoding.

A verify cost is kept as a ratio to the plain step of the same time, so that another program that slows both down
changes little. Costs rise with depth, and attention's share of them rises with rows: there is a curve for each octave
of depth. The curve has steps, so all lengths are compared, not the first that stops paying.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Self

MOST_ROWS = 64
_KNOTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
_NEAREST = [min((abs(knot - rows), knot) for knot in _KNOTS)[1] for rows in range(MOST_ROWS + 1)]  # knot by rows
_REDRAW = 0.02  # relative change of a cost that is worth a new curve
_SHALLOW = 1024  # tokens; octaves begin here
_OCTAVES = 8
_PACE = 0.2  # share of a new measurement
_PLAIN_PACE = 0.1
_CLAMP = 1.25  # one measurement moves a known cost by no more than its share of this
_FIRST_CLAMP = 3.0
_SURE = 5  # plain steps before a cost is known: their median, since the first may wait for a prompt, the next for none

# Before anything was measured: the cost of a row after the first, as a share of a plain step.
_PRIOR_SLOPES = {
    ("mlx", "cpu"): 0.14,
    ("mlx", "metal"): 0.12,
    ("llama.cpp", "cpu"): 0.4,
    ("llama.cpp", "metal"): 0.9,
    ("llama.cpp", "cuda"): 0.1,
}
_PRIOR_SLOPE = 0.5


@dataclass(frozen=True, slots=True)
class Terms:
    """What a step of so many sequences costs: by rows, 0 to MOST_ROWS, in plain steps of one.

    A draft must promise ``margin`` more than plain decoding, and leaving the pipeline for one costs ``bubble`` plain
    steps. None pays whose first token has a smaller chance than ``least``.
    """

    ratios: array[float]
    sequences: int
    margin: float
    bubble: float
    least: float = field(init=False)
    least_pipelined: float = field(init=False)

    def __post_init__(self) -> None:
        sequences, ratios = self.sequences, self.ratios
        usual = ratios[min(sequences, MOST_ROWS)]
        more = [(count, ratios[sequences + count] / usual) for count in range(1, MOST_ROWS + 1 - sequences)]
        share = [sequences * ((1 + self.margin) * ratio - 1) / count for count, ratio in more]
        leaving = [sequences * (ratio - 1 + self.bubble) / count for count, ratio in more]
        least = min(share, default=1.0)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "least_pipelined", max(least, min(leaving, default=1.0)))


@dataclass(slots=True)
class Curve:
    """Verify costs at one octave of depth."""

    slope: float
    measured: dict[int, float] = field(default_factory=dict)  # knot -> ratio
    _ratios: array[float] = field(default_factory=lambda: array("d"))
    _times: dict[int, int] = field(default_factory=dict)

    @property
    def ratios(self) -> array[float]:
        """By rows, 0 to MOST_ROWS: straight lines between measured knots; beyond them the mean of their slope and the
        prior's."""
        if not self._ratios:
            self._ratios = self._drawn()
        return self._ratios

    def learn(self, rows: int, ratio: float) -> None:
        knot = _NEAREST[rows]
        ratio *= self.ratios[knot] / self.ratios[rows]  # what the neighbouring knot would have cost
        known, times = self.measured.get(knot, self.ratios[knot]), self._times.get(knot, 0)
        clamp = _CLAMP if times else _FIRST_CLAMP
        new = known + max(_PACE, 1 / (times + 1)) * (min(max(ratio, known / clamp), known * clamp) - known)
        self.measured[knot], self._times[knot] = new, times + 1
        if abs(new / self.ratios[knot] - 1) > _REDRAW:
            self._ratios = array("d")

    def _drawn(self) -> array[float]:
        points = sorted({1: 1.0, **self.measured}.items())
        rows, ratio = points[-1]
        slope = (self.slope + (ratio - 1) / (rows - 1)) / 2 if rows > 1 else self.slope
        points.append((MOST_ROWS + 1, ratio + slope * (MOST_ROWS + 1 - rows)))
        ratios = array("d", [0.0])
        for (start, low), (stop, high) in pairwise(points):
            ratios.extend(low + (high - low) * (rows - start) / (stop - start) for rows in range(start, stop))
        return ratios


class Costs:
    """Curves of one model on one machine. Depths are tokens in a sequence; rows are those of all sequences."""

    def __init__(self, slope: float = _PRIOR_SLOPE) -> None:
        self._slope = slope
        self._curves: dict[int, Curve] = {}
        self._plain: dict[tuple[int, int], float] = {}  # (sequences, octave) -> seconds
        self._first: dict[tuple[int, int], list[float]] = {}  # likewise, before they are known

    @classmethod
    def prior(cls, backend: str, device: str) -> Self:
        return cls(_PRIOR_SLOPES.get((backend, device), _PRIOR_SLOPE))

    def plain(self, sequences: int, depth: int) -> float | None:
        """Seconds of a plain step; None before it was measured."""
        return self._plain.get((sequences, _octave(depth)))

    def learn_plain(self, sequences: int, depth: int, seconds: float) -> float | None:
        """Gives what ``plain`` gives now."""
        key = (sequences, _octave(depth))
        known = self._plain.get(key)
        if known is None:
            first = self._first.setdefault(key, [])
            first.append(seconds)
            if len(first) < _SURE:
                return None
            known = median(self._first.pop(key))
        else:
            known += _PLAIN_PACE * (min(max(seconds, known / _CLAMP), known * _CLAMP) - known)
        self._plain[key] = known
        return known

    def ratios(self, depth: int) -> array[float]:
        """By rows, 0 to MOST_ROWS: the cost of verifying, in plain steps of one sequence."""
        return self._curve(depth).ratios

    def learn_verify(self, rows: int, sequences: int, depth: int, seconds: float) -> None:
        plain = self.plain(sequences, depth)
        if plain and 1 < rows <= MOST_ROWS:
            curve = self._curve(depth)
            curve.learn(rows, seconds / plain * curve.ratios[min(sequences, MOST_ROWS)])

    def to_json(self) -> dict[str, Any]:
        return {str(octave): curve.measured for octave, curve in self._curves.items()}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or AttributeError for what ``to_json`` did not write; changes nothing then."""
        curves = {}
        for octave, measured in rows.items():
            known = {int(knot): float(ratio) for knot, ratio in measured.items()}
            if not all(knot in _KNOTS and 0.1 < ratio < 1000 for knot, ratio in known.items()):
                raise ValueError("not a curve")
            curves[int(octave)] = Curve(self._slope, known)
        self._curves.update(curves)

    def _curve(self, depth: int) -> Curve:
        octave = _octave(depth)
        if octave not in self._curves:
            near = min(self._curves, key=lambda each: abs(each - octave), default=None)
            self._curves[octave] = Curve(self._slope, {} if near is None else dict(self._curves[near].measured))
        return self._curves[octave]


def _octave(depth: int) -> int:
    return min(_OCTAVES, (depth // _SHALLOW).bit_length())
