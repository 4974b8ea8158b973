"""What steps cost on this machine: a plain one, and one that verifies so many rows, learned while decoding.

A verify cost is kept as a ratio to the plain step of the same time, so that another program that slows both down
changes little. Costs rise with depth, and attention's share of them rises with rows: there is a curve for each octave
of depth. The curve has steps, so all lengths are compared, not the first that stops paying.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MOST_ROWS = 64
_KNOTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
_SHALLOW = 1024  # tokens; octaves begin here
_OCTAVES = 8
_PACE = 0.2  # share of a new measurement
_PLAIN_PACE = 0.1
_CLAMP = 1.25  # one measurement moves a known cost by no more than its share of this
_SURE = 3  # plain steps before a cost is known

# Before anything was measured: the cost of a row after the first, as a share of a plain step.
_PRIOR_SLOPES = {
    ("mlx", "cpu"): 0.14,
    ("mlx", "metal"): 0.12,
    ("llama.cpp", "cpu"): 0.4,
    ("llama.cpp", "metal"): 0.9,
    ("llama.cpp", "cuda"): 0.1,
}
_PRIOR_SLOPE = 0.5


@dataclass(slots=True)
class Curve:
    """Verify costs at one octave of depth."""

    slope: float
    measured: dict[int, float] = field(default_factory=dict)  # knot -> ratio
    _ratios: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """By rows, 0 to MOST_ROWS: between measured knots straight lines, beyond them the prior's slope."""
        if not self._ratios:
            self._ratios = self._drawn()
        return self._ratios

    def learn(self, rows: int, ratio: float) -> None:
        knot = min(_KNOTS, key=lambda each: abs(each - rows))
        ratio *= self.ratios[knot] / self.ratios[rows]  # what the neighbouring knot would have cost
        known = self.measured.get(knot)
        if known is None:
            self.measured[knot] = min(max(ratio, self.ratios[knot] / 2), self.ratios[knot] * 2)
        else:
            self.measured[knot] = known + _PACE * (min(max(ratio, known / _CLAMP), known * _CLAMP) - known)
        self._ratios = []

    def _drawn(self) -> list[float]:
        points = sorted({1: 1.0, **self.measured}.items())
        ratios = [0.0]
        for rows in range(1, MOST_ROWS + 1):
            below = max((point for point in points if point[0] <= rows), default=points[0])
            above = min((point for point in points if point[0] > rows), default=None)
            if above is None:
                ratios.append(below[1] + self.slope * (rows - below[0]))
            else:
                share = (rows - below[0]) / (above[0] - below[0])
                ratios.append(below[1] + share * (above[1] - below[1]))
        return ratios


class Costs:
    """Curves of one model on one machine. Depths are tokens in a sequence; rows are those of all sequences."""

    def __init__(self, slope: float = _PRIOR_SLOPE) -> None:
        self._slope = slope
        self._curves: dict[int, Curve] = {}
        self._plain: dict[tuple[int, int], tuple[float, int]] = {}  # (sequences, octave) -> seconds, steps

    @classmethod
    def prior(cls, backend: str, device: str) -> Self:
        return cls(_PRIOR_SLOPES.get((backend, device), _PRIOR_SLOPE))

    def plain(self, sequences: int, depth: int) -> float | None:
        """Seconds of a plain step; None before it was measured."""
        seconds, steps = self._plain.get((sequences, _octave(depth)), (0.0, 0))
        return seconds if steps >= _SURE else None

    def learn_plain(self, sequences: int, depth: int, seconds: float) -> None:
        key = (sequences, _octave(depth))
        known, steps = self._plain.get(key, (0.0, 0))
        if steps < _SURE:
            known = seconds if not steps else min(known, seconds)
        else:
            known += _PLAIN_PACE * (min(max(seconds, known / _CLAMP), known * _CLAMP) - known)
        self._plain[key] = (known, steps + 1)

    def ratios(self, depth: int) -> list[float]:
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
    return min(_OCTAVES, int(math.log2(depth / _SHALLOW)) + 1) if depth >= _SHALLOW else 0
