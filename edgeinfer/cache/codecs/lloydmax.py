"""The levels that quantize a random number with the least mean square error (Lloyd, 1957; Max, 1960)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_CELLS = 1 << 16
_MOST_ROUNDS = 20_000
_SETTLED = 1e-9


@dataclass(frozen=True, slots=True)
class Codebook:
    """Levels in rising order, the borders between them, and the mean square error in the density they are for."""

    levels: NDArray[np.float32]
    borders: NDArray[np.float32]
    distortion: float

    def nearest(self, numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The index of the level that each number is nearest to."""
        return np.searchsorted(self.borders, numbers).astype(np.uint8)


@cache
def sphere(bits: int, size: int) -> Codebook:
    """For one coordinate of an even point on the unit sphere in ``size`` dimensions, times the root of ``size``.

    Its density is (1 - t²)^((size - 3) / 2) (TurboQuant, arXiv 2504.19874, lemma 1); its variance is 1 here.
    """
    t = _middles(-1.0, 1.0)
    return _optimal(t * np.sqrt(size), (1 - t * t) ** ((size - 3) / 2), 2**bits)


@cache
def polar(bits: int, level: int) -> Codebook:
    """For the angle between the norms of two halves of 2^(level - 1) Gaussian numbers each, ``level`` 2 or more.

    Its density on [0, π/2] is sin(2ψ)^(2^(level - 1) - 1) (PolarQuant, arXiv 2502.02617, lemma 2).
    """
    angle = _middles(0.0, np.pi / 2)
    return _optimal(angle, np.sin(2 * angle) ** (2 ** (level - 1) - 1), 2**bits)


def _middles(low: float, high: float) -> NDArray[np.float64]:
    return low + (high - low) * (np.arange(_CELLS) + 0.5) / _CELLS


def _optimal(points: NDArray[np.float64], density: NDArray[np.float64], count: int) -> Codebook:
    """Lloyd's rounds: each level the mean of its cell, each border in the middle of two levels."""
    weights = density / density.sum()
    edges = np.append(points - (points[1] - points[0]) / 2, points[-1] + (points[1] - points[0]) / 2)
    mass, moment = (np.append(0.0, np.cumsum(each)) for each in (weights, weights * points))
    levels = np.interp((np.arange(count) + 0.5) / count, mass, edges)
    for _ in range(_MOST_ROUNDS):
        borders = np.concatenate([edges[:1], (levels[1:] + levels[:-1]) / 2, edges[-1:]])
        better = np.diff(np.interp(borders, edges, moment)) / np.diff(np.interp(borders, edges, mass))
        settled = float(np.abs(better - levels).max()) < _SETTLED
        levels = better
        if settled:
            break
    borders = (levels[1:] + levels[:-1]) / 2
    distortion = float((weights * (levels[np.searchsorted(borders, points)] - points) ** 2).sum())
    return Codebook(levels.astype(np.float32), borders.astype(np.float32), distortion)
