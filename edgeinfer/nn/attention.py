"""Grouped-query attention over a cache, with the options that the architectures here make use of."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import linear
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The sizes of a model, and the options of one kind of its attention."""

    sizes: Sizes
    scale: float
    window: int = 0  # tokens seen, the token itself among them; 0: all
    softcap: float = 0.0
    bias: bool = False  # on queries, keys and values
    qk_norm: bool = False  # on each query and key head

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.sizes.kv_heads, self.sizes.head_dim)


class Attention:
    """x + output(attention(q, k, v of norm(x)))."""

    def __init__(
        self, tensors: Tensors, spec: AttentionSpec, rotary: ops.Rotary, layer: int, post_norm: str = ""
    ) -> None:
        self.layer = layer
        sizes = spec.sizes
        size, hidden, eps = sizes.head_dim, sizes.hidden, sizes.eps
        rows = {"attn_q": sizes.heads * size, "attn_k": sizes.kv_heads * size, "attn_v": sizes.kv_heads * size}
        self.attn_qkv = linear(tensors, rows, hidden, eps, norm="attn_norm", bias=spec.bias)
        self.heads = ops.heads(
            ops.HeadsParts(
                sizes.heads,
                sizes.kv_heads,
                size,
                rotary,
                spec.scale,
                spec.window,
                spec.softcap,
                q_norm=tensors.vector("attn_q_norm.weight", size) if spec.qk_norm else None,
                k_norm=tensors.vector("attn_k_norm.weight", size) if spec.qk_norm else None,
                eps=eps,
            ),
            linear(tensors, {"attn_output": hidden}, sizes.heads * size, eps, post_norm=post_norm),
        )

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new keys and values into each chunk's cache."""
        layers = [view.layers[self.layer] for view in batch.views]
        x, written = self.heads(self.attn_qkv(x), batch.spans, [layer.arrays for layer in layers], x)
        for layer, arrays in zip(layers, written, strict=True):
            layer.arrays = arrays
        return x
