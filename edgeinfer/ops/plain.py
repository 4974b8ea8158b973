"""The operations in MLX alone: lazy, and on whatever device MLX has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer.ops import affine
from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import PackedExperts, PackedWeight
from edgeinfer.quant.codec import Codec

KV_DTYPE: mx.Dtype = mx.float16
PATHS: Mapping[str, str] = {
    "weights": f"MLX affine for {', '.join(affine.CODECS)}; dense float16 for the rest",
    "linear": "mx.quantized_matmul or mx.matmul",
    "expert_linear": "mx.gather_qmm or mx.gather_mm",
    "embed": "mx.dequantize or mx.take",
    "add": "mlx.core",
    "split_heads": "mlx.core",
    "rms_norm": "mx.fast.rms_norm",
    "rope": "mx.fast.rope",
    "gated": "mlx.core",
    "recurrence": "mlx.core",
    "attention": "mx.fast.scaled_dot_product_attention",
}


_GATHERED = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.float16
"""MLX's CPU build gathers matrices of float32 alone."""


@dataclass(frozen=True, slots=True)
class HalfWeight:
    """(rows, columns) float16; ``wide`` keeps activations in range by their own peak."""

    array: mx.array
    wide: bool

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def linear(self, x: mx.array) -> mx.array:
        rows, peak = _half_rows(x, self.wide)
        return _restore(rows @ self.array.T, peak)

    def embed(self, tokens: mx.array) -> mx.array:
        return mx.take(self.array, tokens, axis=0).astype(mx.float32)


@dataclass(frozen=True, slots=True)
class AffineWeight:
    """scale * q + bias over groups of 32, as ``mx.quantized_matmul`` takes it."""

    packed: mx.array  # (rows, columns * bits / 32) uint32
    scales: mx.array  # (rows, columns / 32) float16 or float32
    biases: mx.array
    bits: int
    wide: bool

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes + self.biases.nbytes

    def linear(self, x: mx.array) -> mx.array:
        rows, peak = (x, None) if self.scales.dtype == mx.float32 else _half_rows(x, self.wide)
        product = mx.quantized_matmul(
            rows, self.packed, self.scales, self.biases, transpose=True, group_size=affine.GROUP, bits=self.bits
        )
        return _restore(product, peak)

    def embed(self, tokens: mx.array) -> mx.array:
        packed, scales, biases = (mx.take(array, tokens, axis=0) for array in (self.packed, self.scales, self.biases))
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        return mx.dequantize(packed, scales, biases, group_size=affine.GROUP, bits=self.bits)


@dataclass(frozen=True, slots=True)
class HalfExperts:
    """(experts, rows, columns) float16, as ``HalfWeight``."""

    array: mx.array
    wide: bool

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        rows, peak = _half_rows(x, self.wide)
        product = mx.gather_mm(
            rows[:, None].astype(_GATHERED),
            self.array.swapaxes(1, 2).astype(_GATHERED),
            rhs_indices=experts.astype(mx.uint32),
            sorted_indices=True,
        )
        return _restore(product[:, 0], peak)


@dataclass(frozen=True, slots=True)
class AffineExperts:
    """As ``AffineWeight``, each array with an axis of experts before the others."""

    packed: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    wide: bool

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes + self.biases.nbytes

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        rows, peak = (x, None) if self.scales.dtype == mx.float32 else _half_rows(x, self.wide)
        product = mx.gather_qmm(
            rows[:, None],
            self.packed,
            self.scales,
            self.biases,
            rhs_indices=experts.astype(mx.uint32),
            transpose=True,
            group_size=affine.GROUP,
            bits=self.bits,
            sorted_indices=True,
        )
        return _restore(product[:, 0], peak)


def _half_rows(x: mx.array, wide: bool) -> tuple[mx.array, mx.array | None]:
    """x as float16; wide rows are divided by their largest magnitude, which is returned beside them."""
    if not wide:
        return x.astype(mx.float16), None
    peak = mx.maximum(mx.max(mx.abs(x), axis=-1, keepdims=True), 1e-30)
    return (x / peak).astype(mx.float16), peak


def _restore(product: mx.array, peak: mx.array | None) -> mx.array:
    result = product.astype(mx.float32)
    return result if peak is None else result * peak


def prepare(packed: PackedWeight, wide: bool) -> HalfWeight | AffineWeight:
    if packed.codec.name in affine.CODECS:
        grouped = affine.pack(packed)
        packed_q, scales, biases = mx.array(grouped.packed), mx.array(grouped.scales), mx.array(grouped.biases)
        return AffineWeight(packed_q, scales, biases, grouped.bits, wide)
    return HalfWeight(mx.array(packed.decode().astype(np.float16)), wide)


def prepare_experts(packed: PackedExperts, wide: bool) -> HalfExperts | AffineExperts:
    weight, count = prepare(packed.stacked, wide), packed.count
    if isinstance(weight, HalfWeight):
        return HalfExperts(mx.unflatten(weight.array, 0, (count, -1)), wide)
    packed_q, scales, biases = (
        mx.unflatten(array, 0, (count, -1)) for array in (weight.packed, weight.scales, weight.biases)
    )
    return AffineExperts(packed_q, scales, biases, weight.bits, wide)


def bits(codec: Codec) -> float:
    """Bits that a prepared weight takes, its share of the group's scale and bias with it."""
    if codec.name not in affine.CODECS:
        return 16
    form = affine.CODECS[codec.name]
    return form.bits + 2 * form.scale_bits / affine.GROUP


def add(x: mx.array, y: mx.array) -> mx.array:
    return x + y


def split_heads(x: mx.array, heads: int) -> mx.array:
    return x.reshape(x.shape[0], heads, -1)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return mx.fast.rms_norm(x, weight, eps)


def gated(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    if activation == "silu":
        return gate * mx.sigmoid(gate) * up
    if activation == "clamped_swiglu":
        low = mx.minimum(gate, 7)
        return low * mx.sigmoid(1.702 * low) * (mx.clip(up, -7, 7) + 1)
    return 0.5 * gate * (1 + mx.tanh(0.7978845608 * (gate + 0.044715 * gate * gate * gate))) * up


def rope(x: mx.array, rotary: Rotary, offset: int) -> mx.array:
    heads = x.swapaxes(0, 1)[None]  # 1 H L D
    if rotary.magnitude != 1:
        heads = mx.concatenate([heads[..., : rotary.dims] * rotary.magnitude, heads[..., rotary.dims :]], axis=-1)
    turned = mx.fast.rope(
        heads,
        rotary.dims,
        traditional=rotary.interleaved,
        base=None,
        scale=1.0,
        offset=offset,
        freqs=rotary.periods,
    )
    return turned[0].swapaxes(0, 1)


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
    count, heads = queries.shape[:2]
    oldest = max(0, length - count + 1 - window) if window else 0
    q = queries.swapaxes(0, 1)[None].astype(keys.dtype)  # 1 H L D
    k, v = keys[None, :, oldest:length], values[None, :, oldest:length]
    visible = _visible(count, length - oldest, window)
    if softcap:
        out = _capped_attention(q, k, v, scale, softcap, visible, sinks)
    else:
        held = None if sinks is None else sinks.astype(q.dtype)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=visible, sinks=held)
    return out[0].swapaxes(0, 1).reshape(count, heads * values.shape[-1]).astype(mx.float32)


def _visible(rows: int, columns: int, window: int) -> mx.array | None:
    """(rows, columns) bool: what the newest ``rows`` of ``columns`` tokens see; None where that is everything."""
    if rows == 1:
        return None
    place = mx.arange(columns - rows, columns)[:, None] - mx.arange(columns)
    return (place >= 0) & (place < window) if window else place >= 0


def _capped_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    softcap: float,
    visible: mx.array | None,
    sinks: mx.array | None,
) -> mx.array:
    groups = q.shape[1] // k.shape[1]
    k, v = mx.repeat(k, groups, axis=1), mx.repeat(v, groups, axis=1)
    scores = (q * scale).astype(mx.float32) @ k.swapaxes(-1, -2).astype(mx.float32)
    scores = softcap * mx.tanh(scores / softcap)
    if visible is not None:
        scores = mx.where(visible, scores, -mx.inf)
    if sinks is not None:
        scores = mx.concatenate([scores, mx.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))], axis=-1)
    return mx.softmax(scores, axis=-1)[..., : v.shape[-2]] @ v.astype(mx.float32)
