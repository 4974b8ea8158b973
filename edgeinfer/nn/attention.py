"""Grouped-query attention over a cache, with the options that the architectures here make use of."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape, LayerKV
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import linear
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries grow with their position by 1 + scale * ln(1 + floor(position / length)) (Llama 4, Meta, 2025)."""

    scale: float
    length: int

    def factors(self, batch: Batch) -> mx.array | None:
        """(T, 1) float32; None where all are 1."""
        steps = batch.positions // self.length
        return mx.array((1 + self.scale * np.log1p(steps))[:, None].astype(np.float32)) if steps.any() else None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The sizes of a model, and the options of one kind of its attention."""

    sizes: Sizes
    scale: float
    window: int = 0  # tokens seen, the token itself among them; 0: all
    softcap: float = 0.0
    bias: bool = False  # on queries, keys and values
    output_bias: bool = False
    qk_norm: bool = False  # on each query and key head
    joint_norm: bool = False  # on the queries of all heads together, and on the keys
    fused: bool = False  # queries, keys and values are one tensor, attn_qkv
    sinks: bool = False
    temperature: Temperature | None = None

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.sizes.kv_heads, self.sizes.head_dim, self.window, self.sinks)


class Attention:
    """x + post_norm(output(attention(q, k, v of norm(x))))."""

    def __init__(
        self,
        tensors: Tensors,
        spec: AttentionSpec,
        rotary: ops.Rotary,
        layer: int,
        post_norm: str = "",
        norm: str = "attn_norm",
    ) -> None:
        self.layer = layer
        self.temperature = spec.temperature
        self.draft_output: ops.LinearMap | None = None  # in place of the output, where rows see what follows them
        sizes = spec.sizes
        size, hidden, eps = sizes.head_dim, sizes.hidden, sizes.eps
        self.eps, self.queries, self.keys = eps, sizes.heads * size, sizes.kv_heads * size
        rows = {"attn_q": self.queries, "attn_k": self.keys, "attn_v": self.keys}
        if spec.fused:
            rows = {"attn_qkv": sum(rows.values())}
        self.attn_qkv = linear(tensors, rows, hidden, eps, norm=norm, bias=spec.bias)
        self.joint_norms: tuple[mx.array, mx.array] | None = None
        if spec.joint_norm:
            ends = ("attn_q_norm.weight", self.queries), ("attn_k_norm.weight", self.keys)
            self.joint_norms = tensors.vector(*ends[0]), tensors.vector(*ends[1])
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
                sinks=tensors.vector("attn_sinks.weight", sizes.heads) if spec.sinks else None,
            ),
            linear(tensors, {"attn_output": hidden}, self.queries, eps, post_norm=post_norm, bias=spec.output_bias),
        )

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new keys and values into each chunk's cache."""
        return self.branch(x, batch, x)

    def branch(self, x: mx.array, batch: Batch, residual: mx.array | None = None) -> mx.array:
        """What is added to x, or to a residual of another scale: (T, hidden) -> (T, hidden)."""
        layers = [view.layers[self.layer] for view in batch.views]
        if batch.whole and isinstance(layers[0], LayerKV):
            return self._whole(x, batch, layers[0])
        qkv = self._tempered(self._normed(self.attn_qkv(x)), batch)
        caches, paging = [layer.arrays for layer in layers], batch.paging(self.layer)
        if paging is None:
            out, written = self.heads(qkv, batch.spans, caches, residual)
        else:
            out, written = self.heads.paged(qkv, batch.spans, caches, paging, residual)
        for layer, arrays in zip(layers, written, strict=True):
            layer.arrays = arrays
        return out

    def _whole(self, x: mx.array, batch: Batch, layer: LayerKV) -> mx.array:
        assert self.draft_output is not None
        qkv = self._tempered(self._normed(self.attn_qkv(x)), batch)
        cache, layer.arrays = layer.arrays, ()  # given away, so that it is written where it lies
        out, layer.arrays = self.heads.block(qkv, batch.views[0].offset, cache, x, self.draft_output)
        return out

    def _normed(self, qkv: mx.array) -> mx.array:
        if self.joint_norms is None:
            return qkv
        q, k, v = mx.split(qkv, [self.queries, self.queries + self.keys], axis=1)
        q, k = (ops.rms_norm(each, gain, self.eps) for each, gain in zip((q, k), self.joint_norms, strict=True))
        return mx.concatenate([q, k, v], axis=1)

    def _tempered(self, qkv: mx.array, batch: Batch) -> mx.array:
        factors = self.temperature.factors(batch) if self.temperature else None
        if factors is None:
            return qkv
        return mx.concatenate([qkv[:, : self.queries] * factors, qkv[:, self.queries :]], axis=1)
