"""How far each pair of channels turns per token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]

MOST_TABLES = 64
"""Chunks of a step whose angles are kept."""


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of the first ``2 * len(frequencies)`` channels of a head.

    ``frequencies``: (dims / 2,) float64, radians a token. ``interleaved`` pairs channels (0, 1), (2, 3), … (GPT-J);
    otherwise (0, dims / 2), (1, dims / 2 + 1), … (GPT-NeoX). ``magnitude`` multiplies what was rotated (YaRN).
    """

    frequencies: NDArray[np.float64]
    interleaved: bool
    magnitude: float = 1.0
    _tables: dict[tuple[int, int], Table] = field(default_factory=dict, repr=False, compare=False)
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What implementations keep for all layers that hold this object, each under a key of its own."""

    @property
    def dims(self) -> int:
        return 2 * len(self.frequencies)

    @cached_property
    def periods(self) -> mx.array:
        """Tokens a radian, as ``mx.fast.rope`` takes them: (dims / 2,) float32."""
        with np.errstate(divide="ignore"):  # a pair that stands still has an endless period
            return mx.array((1 / self.frequencies).astype(np.float32))

    def table(self, offset: int, count: int) -> Table:
        """Cosines and sines of ``count`` positions from ``offset``: each (count, 1, dims / 2) float32.

        Kept for the other layers of the same step.
        """
        found = self._tables.get((offset, count))
        if found is None:
            angles = np.arange(offset, offset + count)[:, None, None] * self.frequencies
            cosine, sine = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
            found = cosine.astype(np.float32), sine.astype(np.float32)
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[offset, count] = found
        return found
