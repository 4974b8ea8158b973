"""The operations on Apple GPUs: our kernels on the blocks as they lie in the file, MLX's own for all else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from edgeinfer.metal_kernels import attention as kernels
from edgeinfer.metal_kernels import products, warmup
from edgeinfer.ops import plain
from edgeinfer.ops.adopt import adopt
from edgeinfer.ops.weights import PackedWeight, Weight
from edgeinfer.quant.codec import Codec

KV_DTYPE: mx.Dtype = mx.float16
PATHS: Mapping[str, str] = {
    **plain.PATHS,
    "weights": "the blocks of the file",
    "linear": "our Metal kernels, sums in float32",
    "embed": "our Metal kernels",
    "attention": f"our Metal kernels for up to {kernels.MOST_ROWS} rows, else {plain.PATHS['attention']}",
}


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


def prepare(packed: PackedWeight, wide: bool) -> Weight:
    """The twin's weight where this codec or shape has no kernel, or its kernels do not run on this GPU."""
    if not products.supports(packed.codec, packed.shape[1]) or warmup.codec_obstacle(packed.codec):
        return plain.prepare(packed, wide)
    return BlockWeight(packed.codec, adopt(packed.blocks))


def bits(codec: Codec) -> float:
    """Bits that a prepared weight takes."""
    return codec.bits


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> mx.array:
    rows, heads, head_dim = queries.shape
    kv_heads, capacity = keys.shape[:2]
    usable = kernels.supports(rows, heads, kv_heads, head_dim) and capacity % kernels.PAGE == 0
    if not usable or warmup.attention_obstacle(heads, kv_heads, head_dim):
        return plain.attention(queries, keys, values, length, scale=scale, window=window, softcap=softcap)
    return kernels.attend(queries, keys, values, length, scale=scale, window=window, softcap=softcap)


add = plain.add
split_heads = plain.split_heads
rms_norm = plain.rms_norm
gated = plain.gated
rope = plain.rope
