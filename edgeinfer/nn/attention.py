"""Grouped-query attention over a cache, with the options that the architectures here make use of."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import Linear, RMSNorm
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
    def __init__(self, tensors: Tensors, spec: AttentionSpec, rotary: ops.Rotary, layer: int) -> None:
        self.spec = spec
        self.rotary = rotary
        self.layer = layer
        sizes = spec.sizes
        hidden, size = sizes.hidden, sizes.head_dim
        self.attn_q = Linear(tensors, "attn_q", sizes.heads * size, hidden, spec.bias)
        self.attn_k = Linear(tensors, "attn_k", sizes.kv_heads * size, hidden, spec.bias)
        self.attn_v = Linear(tensors, "attn_v", sizes.kv_heads * size, hidden, spec.bias)
        self.attn_output = Linear(tensors, "attn_output", hidden, sizes.heads * size)
        self.attn_q_norm = RMSNorm(tensors, "attn_q_norm", size, sizes.eps) if spec.qk_norm else None
        self.attn_k_norm = RMSNorm(tensors, "attn_k_norm", size, sizes.eps) if spec.qk_norm else None

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new keys and values into each chunk's cache."""
        spec = self.spec
        q = ops.split_heads(self.attn_q(x), spec.sizes.heads)
        k = ops.split_heads(self.attn_k(x), spec.sizes.kv_heads)
        v = ops.split_heads(self.attn_v(x), spec.sizes.kv_heads)
        if self.attn_q_norm is not None and self.attn_k_norm is not None:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        mixed = []
        for view in batch.views:
            cache = view.layers[self.layer]
            cache.append(ops.rope(view.rows(k), self.rotary, view.offset), view.rows(v), view.offset)
            queries = ops.rope(view.rows(q), self.rotary, view.offset)
            mixed.append(
                ops.attention(
                    queries,
                    cache.keys,
                    cache.values,
                    view.length,
                    scale=spec.scale,
                    window=spec.window,
                    softcap=spec.softcap,
                )
            )
        return self.attn_output(mixed[0] if len(mixed) == 1 else mx.concatenate(mixed))
