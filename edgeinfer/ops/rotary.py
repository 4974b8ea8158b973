"""How far each pair of channels turns per token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of the first ``2 * len(frequencies)`` channels of a head.

    ``frequencies``: (dims / 2,) float64, radians a token. ``interleaved`` pairs channels (0, 1), (2, 3), … (GPT-J);
    otherwise (0, dims / 2), (1, dims / 2 + 1), … (GPT-NeoX). ``magnitude`` multiplies what was rotated (YaRN).
    """

    frequencies: NDArray[np.float64]
    interleaved: bool
    magnitude: float = 1.0

    @property
    def dims(self) -> int:
        return 2 * len(self.frequencies)

    @cached_property
    def periods(self) -> mx.array:
        """Tokens a radian, as ``mx.fast.rope`` takes them: (dims / 2,) float32."""
        return mx.array((1 / self.frequencies).astype(np.float32))

    def table(self, offset: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines of ``count`` positions from ``offset``: each (count, 1, dims / 2) float32."""
        angles = np.arange(offset, offset + count)[:, None, None] * self.frequencies
        return (
            (np.cos(angles) * self.magnitude).astype(np.float32),
            (np.sin(angles) * self.magnitude).astype(np.float32),
        )
