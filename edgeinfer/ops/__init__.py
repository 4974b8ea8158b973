"""Functions on arrays. Each has two implementations, and this module is where one is picked.

- ``plain``: MLX alone. What a GPU runs, and what the tests compare the other with.
- ``host``: numpy on the arrays' own memory. MLX's CPU build multiplies with the reference BLAS, 10 to 70 times slower
  than numpy's OpenBLAS on the same two cores, and each of its small operations waits for another thread.

Shapes: T rows of all chunks together, L tokens of one chunk, H query heads, K kv heads, D head size, S cached tokens.
"""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from edgeinfer.ops import host, plain
from edgeinfer.ops.implementation import Implementation
from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import PackedWeight, Weight
from edgeinfer.ops.workers import threads
from edgeinfer.quant.codec import Codec

__all__ = [
    "PackedWeight", "Rotary", "Weight", "add", "attention", "device", "embed", "gated", "kv_dtype", "linear", "on_gpu",
    "paths", "prepare", "prepared_bytes", "rms_norm", "rope", "split_heads", "threads",
]  # fmt: skip

on_gpu: Final[bool] = mx.default_device() == mx.Device(mx.gpu)
here: Implementation = plain if on_gpu else host


def prepare(packed: PackedWeight, wide: bool = False) -> Weight:
    """A stored matrix made ready to multiply. ``wide``: activations may leave the range of float16."""
    return here.prepare(packed, wide)


def prepared_bytes(codec: Codec, weights: int) -> int:
    """Bytes that ``prepare`` makes of so many weights."""
    return round(here.bits(codec) * weights / 8)


def linear(x: mx.array, weight: Weight) -> mx.array:
    """x @ weight.T. x: (T, columns) float32, weight: (rows, columns) -> (T, rows) float32."""
    return weight.linear(x)


def embed(tokens: mx.array, weight: Weight) -> mx.array:
    """The rows of ``weight`` that ``tokens`` name. (T,) int32 -> (T, columns) float32."""
    return weight.embed(tokens)


def add(x: mx.array, y: mx.array) -> mx.array:
    """x + y; y may be a row. (T, n), (T, n) or (n,) -> (T, n)."""
    return here.add(x, y)


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(T, heads * D) -> (T, heads, D)."""
    return here.split_heads(x, heads)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang and Sennrich, 2019). (..., n) -> (..., n)."""
    return here.rms_norm(x, weight, eps)


def gated(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    """activation(gate) * up, elementwise; ``silu``, or ``gelu`` in its tanh form (Hendrycks and Gimpel, 2016)."""
    return here.gated(gate, up, activation)


def rope(x: mx.array, rotary: Rotary, offset: int) -> mx.array:
    """Rotates the heads of consecutive tokens, the first at position ``offset`` (Su et al., 2021). x: (L, H, D)."""
    return here.rope(x, rotary, offset)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> mx.array:
    """Causal attention of the newest L tokens over the first ``length`` cached ones, themselves included.

    queries: (L, H, D); keys, values: (K, capacity, D) with capacity >= length -> (L, H * D) float32.
    A token sees the last ``window`` tokens, itself among them (0: all); scores pass ``softcap * tanh(s / softcap)``.
    """
    return here.attention(queries, keys, values, length, scale=scale, window=window, softcap=softcap)


def kv_dtype() -> mx.Dtype:
    """What keys and values are stored as here."""
    return here.KV_DTYPE


def device() -> str:
    """``cpu``, ``metal`` or ``cuda``."""
    if not on_gpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def paths() -> dict[str, str]:
    """Operation -> the implementation it takes on this machine."""
    return dict(here.PATHS)
