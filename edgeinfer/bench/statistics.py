"""Medians and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of samples, the smallest and the largest."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Of at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))

    @property
    def percent(self) -> float:
        """Half of the range, in percent of the median."""
        return 50 * (self.high - self.low) / self.median if self.median else 0.0


def ratio(over: Mapping[int, float], under: Mapping[int, float]) -> Spread | None:
    """over / under, round by round, in the rounds that have both: what disturbs a round disturbs both sides of it."""
    ratios = [value / under[number] for number, value in over.items() if number in under]
    return Spread.of(ratios) if ratios else None
