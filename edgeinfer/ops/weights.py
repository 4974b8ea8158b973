"""A matrix on its way from the file to the multiplication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.codec import Codec, decode


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix as it lies in the file. blocks: (rows, bytes per row) uint8; shape: (rows, columns)."""

    codec: Codec
    blocks: NDArray[np.uint8]
    shape: tuple[int, int]

    def decode(self) -> NDArray[np.float32]:
        """The weights themselves: (rows, columns) float32."""
        return decode(self.codec, self.blocks)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """``count`` matrices of one shape, one below the other as they lie in the file: (count * rows, columns)."""

    count: int
    stacked: PackedWeight


class Weight(Protocol):
    """A matrix that an implementation has made ready."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes in memory."""

    def linear(self, x: mx.array) -> mx.array:
        """x: (T, columns) -> (T, rows), float32."""

    def embed(self, tokens: mx.array) -> mx.array:
        """tokens: (T,) -> (T, columns), float32."""


class ExpertWeight(Protocol):
    """Matrices of which each row of x takes one."""

    @property
    def nbytes(self) -> int:
        """Bytes they take in memory."""

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        """Row m by the matrix ``experts[m]``. x: (M, columns), experts: (M,) int32 ascending -> (M, rows), float32."""
