"""Random packed matrices and caches, and what a kernel's result is held against."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer.metal_kernels.attention import PAGE
from edgeinfer.quant.codec import AFFINE_BITS, CODECS, Codec, decode
from tests.tiny import random_blocks

_AFFINE = {"affine4_32", "affine4_128", *(f"affine{bits}_64" for bits in AFFINE_BITS)}  # of 18, each size once
DECODABLE = [row for row in CODECS.values() if row.decodable and (row.family != "affine" or row.name in _AFFINE)]
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
    blocks = random_blocks(codec, rows, columns, np.random.default_rng(seed))
    return Matrix(codec, blocks, decode(codec, blocks))


def floats(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def worst(found: mx.array, expected: np.ndarray) -> float:
    """The largest difference over the largest value; infinite where a number is missing."""
    difference = np.abs(wide(found) - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def kv_cache(kv_heads: int, length: int, size: int, seed: int) -> mx.array:
    """(K, capacity, D) float16 in whole pages; what lies behind the last token is no number."""
    stored = np.full((kv_heads, -(-length // PAGE) * PAGE, size), np.nan, np.float16)
    stored[:, :length] = np.array(floats((kv_heads, length, size), mx.float16, seed))
    return mx.array(stored)


def attention_in_float64(queries, keys, values, length, *, scale, window=0, softcap=0.0, sinks=None) -> np.ndarray:
    """(L, H, D), (K, S, D), (K, S, D) -> (L, H * D), from the formula."""
    rows, heads, size = queries.shape
    k, v = (np.repeat(wide(each)[:, :length], heads // len(each), axis=0) for each in (keys, values))
    scores = np.einsum("lhd,htd->hlt", wide(queries), k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    place = np.arange(length - rows, length)[:, None] - np.arange(length)
    scores = np.where((place >= 0) & ((place < window) if window else True), scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total += np.exp(wide(sinks)[:, None, None] - most)
    return np.einsum("hlt,htd->lhd", weights / total, v).reshape(rows, heads * size)


def rms_norm(x: mx.array, gain: mx.array, eps: float) -> np.ndarray:
    rows = wide(x)
    return np.asarray(rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + eps) * wide(gain))


def gated(gate: Matrix, up: Matrix, x: np.ndarray, activation: str) -> np.ndarray:
    """activation(x @ gate.T) * (x @ up.T)."""
    y = x @ gate.weights.T.astype(np.float64)
    inner = np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))
    passed = y / (1 + np.exp(-y)) if activation == "silu" else 0.5 * y * (1 + inner)
    return np.asarray(passed * (x @ up.weights.T.astype(np.float64)))
