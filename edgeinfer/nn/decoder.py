"""The decoder that Llama, Qwen 2 and Qwen 3 share: a norm before each half of a block, and nothing after it."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import GatedMLP, Head
from edgeinfer.nn.tensors import Tensors


class PreNormBlock:
    def __init__(self, spec: AttentionSpec, turn: ops.Rotary, tensors: Tensors, layer: int) -> None:
        self.attention = Attention(tensors, spec, turn, layer)
        self.mlp = GatedMLP(tensors, spec.sizes, "silu")

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        return self.mlp(self.attention(x, batch))


class PreNormDecoder:
    wide: ClassVar[bool] = False

    def __init__(self, spec: AttentionSpec, turn: ops.Rotary, tensors: Tensors) -> None:
        sizes = spec.sizes
        self.kv_shapes: list[KVShape] = [spec.kv_shape] * sizes.layers
        self.token_embd = tensors.matrix("token_embd.weight", sizes.vocabulary, sizes.hidden)
        self.blocks = [PreNormBlock(spec, turn, tensors.under(f"blk.{i}."), i) for i in range(sizes.layers)]
        self.head = Head(tensors, self.token_embd, sizes)

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        x = ops.embed(batch.tokens, self.token_embd)
        for block in self.blocks:
            x = block(x, batch)
        return self.head(batch.wanted(x))
