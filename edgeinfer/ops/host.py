"""The operations in numpy, on the memory of MLX's CPU arrays.

MLX computes on a thread of its own, and waiting for it takes 20 µs, or a time slice on a busy machine. So a layer stays
in numpy from end to end, but for the cache's in-place writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import PackedExperts, PackedWeight
from edgeinfer.ops.workers import current
from edgeinfer.quant.codec import Codec

Floats: TypeAlias = NDArray[np.float32]

KV_DTYPE: mx.Dtype = mx.float32
PATHS: Mapping[str, str] = {
    "weights": "dense float32",
    "linear": "numpy (BLAS)",
    "expert_linear": "numpy (BLAS)",
    "embed": "numpy",
    "add": "numpy",
    "split_heads": "numpy",
    "rms_norm": "numpy",
    "rope": "numpy",
    "gated": "numpy",
    "recurrence": "numpy (BLAS)",
    "attention": "numpy (BLAS)",
}
_SCORES = 1 << 22
"""Attention scores that a thread holds at once: 16 MiB."""


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """(rows, columns) float32, row by row as in the file: the layout that gemv and embedding both want."""

    array: Floats

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def linear(self, x: mx.array) -> mx.array:
        return mx.array(current().product(self.array, _view(x).T).T)  # for a few rows twice as quick as x @ array.T

    def embed(self, tokens: mx.array) -> mx.array:
        return mx.array(self.array[np.asarray(tokens)])


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """(experts, rows, columns) float32."""

    array: Floats

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        mx.eval(x, experts)
        rows, chosen = _view(x), np.asarray(experts)
        out = np.empty((len(rows), self.array.shape[1]), np.float32)
        for expert, part in runs(chosen):
            out[part] = current().product(self.array[expert], rows[part].T).T
        return mx.array(out)


def runs(experts: NDArray[np.int32]) -> Iterator[tuple[int, slice]]:
    """Each expert of an ascending row, with where it stands."""
    borders = [0, *(np.flatnonzero(np.diff(experts)) + 1).tolist(), len(experts)]
    for start, stop in pairwise(borders):
        yield int(experts[start]), slice(start, stop)


def prepare(packed: PackedWeight, wide: bool) -> DenseWeight:
    """float32 holds every codec's weights exactly, and every activation: ``wide`` changes nothing here."""
    return DenseWeight(packed.decode())


def prepare_experts(packed: PackedExperts, wide: bool) -> DenseExperts:
    weights = packed.stacked.decode()
    return DenseExperts(weights.reshape(packed.count, -1, weights.shape[1]))


def bits(codec: Codec) -> float:
    """Bits that a prepared weight takes."""
    return 32


def add(x: mx.array, y: mx.array) -> mx.array:
    return mx.array(_view(x) + _view(y))


def split_heads(x: mx.array, heads: int) -> mx.array:
    return mx.array(_view(x).reshape(len(x), heads, -1))


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    rows = _view(x)
    mean = np.mean(rows * rows, axis=-1, keepdims=True)
    return mx.array(rows * (1 / np.sqrt(mean + np.float32(eps))) * _view(weight))


def gated(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    return mx.array(_GATES[activation](_view(gate), _view(up)))


def _silu(x: Floats) -> Floats:
    gate: Floats = 1 + np.exp(np.minimum(-x, 88))  # e⁸⁸ is the last power that float32 holds
    return x / gate


def _gelu(x: Floats) -> Floats:
    inner: Floats = np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x))
    return np.float32(0.5) * x * (1 + inner)


def _clamped_swiglu(gate: Floats, up: Floats) -> Floats:
    low = np.minimum(gate, np.float32(7))
    held: Floats = np.clip(up, -7, 7) + np.float32(1)
    return _silu(np.float32(1.702) * low) / np.float32(1.702) * held


_GATES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "silu": lambda gate, up: _silu(gate) * up,
    "gelu": lambda gate, up: _gelu(gate) * up,
    "clamped_swiglu": _clamped_swiglu,
}


def rope(x: mx.array, rotary: Rotary, offset: int) -> mx.array:
    heads = _view(x)
    cosine, sine = rotary.table(offset, len(heads))
    half = rotary.dims // 2
    first, second = (
        (slice(0, rotary.dims, 2), slice(1, rotary.dims, 2))
        if rotary.interleaved
        else (slice(0, half), slice(half, rotary.dims))
    )
    turned = heads.copy()
    a, b = heads[..., first], heads[..., second]
    turned[..., first] = a * cosine - b * sine
    turned[..., second] = a * sine + b * cosine
    return mx.array(turned)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int,
    softcap: float,
    sinks: mx.array | None = None,
) -> mx.array:
    mx.eval(keys, values)  # together: each wait for MLX's thread costs as much as a small multiplication
    count, heads, size = queries.shape
    kv_heads = keys.shape[0]
    grouped = _view(queries).reshape(count, kv_heads, heads // kv_heads, size).transpose(1, 2, 0, 3)  # K G L D
    all_keys, all_values = _view(keys), _view(values)
    value_size = values.shape[-1]
    out = np.empty((count, heads, value_size), np.float32)
    resting = None if sinks is None else _view(sinks).reshape(kv_heads, heads // kv_heads, 1, 1)
    rows = max(1, min(128, _SCORES // (heads * length)))

    def block(start: int) -> None:
        stop = min(start + rows, count)
        newest = length - count + stop  # keys that this block's last query sees end here
        oldest = max(0, length - count + start + 1 - window) if window else 0
        weights = _softmax(
            _scores(grouped[:, :, start:stop] * np.float32(scale), all_keys[:, oldest:newest], softcap),
            length - count + start - oldest,
            window,
            resting,
        )
        mixed = weights.reshape(kv_heads, -1, newest - oldest) @ all_values[:, oldest:newest]  # K (G rows) D
        out[start:stop] = mixed.reshape(heads, stop - start, value_size).transpose(1, 0, 2)

    current().each(block, range(0, count, rows))
    return mx.array(out.reshape(count, heads * value_size))


def _scores(queries: Floats, keys: Floats, softcap: float) -> Floats:
    """(K, G, rows, D), (K, S, D) -> (K, G, rows, S)."""
    kv_heads, groups, rows, size = queries.shape
    scores: Floats = queries.reshape(kv_heads, groups * rows, size) @ keys.transpose(0, 2, 1)
    if softcap:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    return scores.reshape(kv_heads, groups, rows, -1)


def _softmax(scores: Floats, first: int, window: int, sinks: Floats | None) -> Floats:
    """Over the keys that each row may see; row i of a block stands at key ``first + i``. Overwrites ``scores``.

    sinks: (K, G, 1, 1), a score of each head that takes its share of the sum.
    """
    rows, columns = scores.shape[-2:]
    if rows > 1:
        place = np.arange(first, first + rows)[:, None] - np.arange(columns)
        hidden = (place < 0) | (place >= window) if window else place < 0
        scores[..., hidden] = -np.inf
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= total if sinks is None else total + np.exp(sinks - largest)
    return scores


def _view(x: mx.array) -> Floats:
    """The array's own memory; computes it first where that has not been done."""
    array: Any = np.asarray(x)
    return array  # type: ignore[no-any-return]
