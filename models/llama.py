"""Llama 1 to 3, Mistral, SmolLM2, TinyLlama (Touvron et al., 2023): GGUF keeps query and key channels interleaved."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import GatedMLP, RMSNorm
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Block:
    def __init__(self, sizes: Sizes, spec: AttentionSpec, turn: ops.Rotary, tensors: Tensors, layer: int) -> None:
        self.attn_norm = RMSNorm(tensors, "attn_norm", sizes.hidden, sizes.eps)
        self.attention = Attention(tensors, spec, turn, layer)
        self.ffn_norm = RMSNorm(tensors, "ffn_norm", sizes.hidden, sizes.eps)
        self.mlp = GatedMLP(tensors, sizes.hidden, sizes.feed_forward, "silu")

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        x = x + self.attention(self.attn_norm(x), batch)
        return x + self.mlp(self.ffn_norm(x))


class Model:
    wide: ClassVar[bool] = False

    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        spec = AttentionSpec(
            sizes.hidden,
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            window=config.read("attention.sliding_window", int, 0),
        )
        turn = rotary(config, tensors, sizes.head_dim, interleaved=True)
        self.kv_shapes: list[KVShape] = [spec.kv_shape] * sizes.layers
        self.token_embd = tensors.matrix("token_embd.weight", sizes.vocabulary, sizes.hidden)
        self.blocks = [Block(sizes, spec, turn, tensors.under(f"blk.{i}."), i) for i in range(sizes.layers)]
        self.output_norm = RMSNorm(tensors, "output_norm", sizes.hidden, sizes.eps)
        self.output = tensors.head("output.weight", self.token_embd, sizes.vocabulary, sizes.hidden)

    def __call__(self, batch: Batch) -> mx.array:
        x = ops.embed(batch.tokens, self.token_embd)
        for block in self.blocks:
            x = block(x, batch)
        return ops.linear(self.output_norm(batch.wanted(x)), self.output)
