"""Random packed matrices, and what a kernel's result is held against."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer.quant.codec import CODECS, Codec, decode
from tests.tiny import encode

DECODABLE = [codec for codec in CODECS.values() if codec.decodable]
BOUNDS = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 5e-3}
"""Of the largest value, by the type of x and y."""


@dataclass(frozen=True)
class Matrix:
    codec: Codec
    blocks: np.ndarray  # (N, bytes of a row) uint8
    weights: np.ndarray  # (N, K) float32

    @property
    def array(self) -> mx.array:
        return mx.array(self.blocks)


def matrix(codec: Codec, rows: int, columns: int, seed: int = 0) -> Matrix:
    random = np.random.default_rng(seed)
    stored = encode(random.standard_normal((rows, columns)).astype(np.float32), codec.name)
    blocks = np.ascontiguousarray(stored).view(np.uint8).reshape(rows, -1)
    return Matrix(codec, blocks, decode(codec, blocks))


def floats(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def worst(found: mx.array, expected: np.ndarray) -> float:
    """The largest difference over the largest value; infinite where a number is missing."""
    difference = np.abs(wide(found) - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")
