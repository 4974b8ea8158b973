"""The operations on Apple GPUs: our kernels on the blocks as they lie in the file, MLX's own for all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from edgeinfer.metal_kernels import attention as kernels
from edgeinfer.metal_kernels import products, warmup
from edgeinfer.metal_kernels.sealed import PageFormat
from edgeinfer.metal_kernels.specs import ACTIVATIONS, KERNELS
from edgeinfer.metal_kernels.tuning import tuning
from edgeinfer.ops import plain
from edgeinfer.ops.adopt import adopt
from edgeinfer.ops.parts import LinearMap, MapParts
from edgeinfer.ops.weights import ExpertWeight, PackedExperts, PackedWeight, Weight
from edgeinfer.quant.codec import Codec

KV_DTYPE: mx.Dtype = mx.float16
PATHS: Mapping[str, str] = {
    **plain.PATHS,
    "weights": "the blocks of the file",
    "linear": f"our Metal kernels for rows of a multiple of {products.CHUNK} weights, sums in float32",
    "expert_linear": "our Metal kernels",
    "embed": "our Metal kernels",
    "attention": f"our Metal kernels for up to {kernels.MOST_ROWS} rows, and for more where MLX would write out scores "
    f"or a mask; else {plain.PATHS['attention']}",
    "sealed pages": "our Metal kernels for heads of "
    f"{', '.join(map(str, kernels.HEAD_DIMS))} in our own formats; numpy for the others",
}
_FUSED_BY_MLX = frozenset({64, 80, 128})
"""Head sizes of which MLX computes attention of many rows in one kernel, without writing out the scores."""


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """(rows, bytes per row) uint8: the file's own blocks. Activations stay float32, so none is too wide."""

    codec: Codec
    blocks: mx.array

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def linear(self, x: mx.array) -> mx.array:
        return products.multiply(x, self.blocks, self.codec)

    def embed(self, tokens: mx.array) -> mx.array:
        return products.rows(tokens, self.blocks, self.codec)


@dataclass(frozen=True, slots=True)
class BlockExperts:
    """(experts, rows, bytes per row) uint8: the file's own blocks."""

    codec: Codec
    blocks: mx.array

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        return products.multiply_experts(x, self.blocks, self.codec, experts)


def prepare_experts(packed: PackedExperts, wide: bool) -> ExpertWeight:
    """As ``prepare``."""
    stacked = packed.stacked
    if not products.supports(stacked.codec, stacked.shape[1]) or warmup.experts_obstacle(stacked.codec):
        return plain.prepare_experts(packed, wide)
    blocks = adopt(stacked.blocks)
    return BlockExperts(stacked.codec, blocks.reshape(packed.count, -1, blocks.shape[1]))


def prepare(packed: PackedWeight, wide: bool) -> Weight:
    """The twin's weight where this codec or shape has no kernel, or its kernels do not run on this GPU."""
    if not products.supports(packed.codec, packed.shape[1]) or warmup.codec_obstacle(packed.codec):
        return plain.prepare(packed, wide)
    return BlockWeight(packed.codec, adopt(packed.blocks))


@dataclass(frozen=True, slots=True)
class FusedMap:
    """A linear map of few rows in one launch of ``kernel``, or for ``qmv`` in one a matrix.

    Of more rows it is as ``composed`` has it.
    """

    kernel: str
    parts: MapParts
    composed: LinearMap
    blocks: Sequence[BlockWeight]

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        if x.shape[0] > tuning().small_rows:
            return self.composed(x, residual)
        first, rest = self.blocks[0], [each.blocks for each in self.blocks[1:]]
        fused = "residual" in KERNELS[self.kernel].fuses and (self.kernel != "qmv" or not rest)
        extras = products.Extras(self.parts.norm, self.parts.eps, self.parts.bias, residual if fused else None)
        if self.kernel == "qmv_gated":
            y = products.qmv_gated(x, first.blocks, rest[0], first.codec, self.parts.activation, extras)
        elif self.kernel == "qmv_joined":
            y = products.qmv_joined(x, [first.blocks, *rest], first.codec, self.blocks[-1].codec, extras)
        else:
            y = self._one_by_one(x, extras)
        return y if fused or residual is None else plain.add(residual, y)

    def _one_by_one(self, x: mx.array, extras: products.Extras) -> mx.array:
        made, start = [], 0
        for each in self.blocks:
            end = start + each.blocks.shape[0]
            bias = None if extras.bias is None else extras.bias[start:end]
            made.append(products.qmv(x, each.blocks, each.codec, replace(extras, bias=bias)))
            start = end
        return made[0] if len(made) == 1 else mx.concatenate(made, axis=1)


def linear_map(parts: MapParts, composed: LinearMap) -> LinearMap:
    """``composed``, or the fused form where a kernel has all of its parts."""
    blocks = [weight for weight in parts.weights if isinstance(weight, BlockWeight)]
    given = {
        "norm": parts.norm,
        "bias": parts.bias,
        "post_norm": parts.post_norm,
        "activation": parts.activation or None,
    }
    used = {name for name, part in given.items() if part is not None}
    kernel = _kernel_of(blocks, parts.activation)
    if len(blocks) < len(parts.weights) or not used <= KERNELS[kernel].fuses:
        return composed
    return FusedMap(kernel, parts, composed, blocks)


def _kernel_of(blocks: Sequence[BlockWeight], activation: str) -> str:
    """The kernel that takes most of these matrices at once."""
    if activation in ACTIVATIONS and len({(each.codec, each.blocks.shape) for each in blocks}) == 1:
        return "qmv_gated"
    joined = len(blocks) == 3 and blocks[0].codec == blocks[1].codec
    return "qmv_joined" if joined and not warmup.joined_obstacle(blocks[0].codec, blocks[2].codec) else "qmv"


def bits(codec: Codec) -> float:
    """Bits that a prepared weight takes."""
    return codec.bits


def page_bytes(head_dim: int, widths: tuple[int, int]) -> int:
    """Bytes of a sealed page of one kv head; 0 where there are no kernels, or they do not run on this GPU."""
    form = PageFormat(head_dim, *widths)
    return form.nbytes if form.supported and not warmup.sealed_obstacle(form) else 0


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
    rows, heads, head_dim = queries.shape
    kv_heads, capacity = keys.shape[:2]
    alike = keys.shape == values.shape
    few = kernels.supports(rows, heads, kv_heads, head_dim)
    many = head_dim in kernels.HEAD_DIMS and (window > 0 or softcap > 0 or head_dim not in _FUSED_BY_MLX)
    usable = alike and (few or many) and capacity % kernels.PAGE == 0
    if not usable or warmup.attention_obstacle(heads, kv_heads, head_dim):
        return plain.attention(queries, keys, values, length, scale=scale, window=window, softcap=softcap, sinks=sinks)
    attend = kernels.attend if few else kernels.attend_rows
    return attend(queries, keys, values, length, scale=scale, window=window, softcap=softcap, sinks=sinks)


add = plain.add
split_heads = plain.split_heads
rms_norm = plain.rms_norm
gated = plain.gated
rope = plain.rope
