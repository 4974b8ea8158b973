"""Gemma 2 (Gemma Team, 2024): every other layer with a window, and soft caps on attention and on logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import mlx.core as mx

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

LAYERS_OF_27B = 46
"""Scales queries by its embedding's share of a head (query_pre_attn_scalar = 144); GGUF has no key that says so."""


class Model(Decoder):
    wide: ClassVar[bool] = True

    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        self.grown = math.sqrt(sizes.hidden)
        self.softcap = config.read("final_logit_softcapping", float, 30.0, minimum=1e-3)
        per_head = sizes.hidden / sizes.heads if sizes.layers == LAYERS_OF_27B else sizes.head_dim
        far = AttentionSpec(
            sizes, scale=per_head**-0.5, softcap=config.read("attn_logit_softcapping", float, 50.0, minimum=1e-3)
        )
        window = config.read("attention.sliding_window", int, 4096, minimum=1)
        near = replace(far, window=window)
        windowed = config.pattern("attention.sliding_window_pattern", sizes.layers, 2)
        specs = [near if each else far for each in windowed]
        turn = rotary(config, tensors, sizes.head_dim)

        def block(part: Tensors, layer: int) -> Block:
            attention = Attention(part, specs[layer], turn, layer, post_norm="post_attention_norm")
            return Block(attention, GatedMLP(part, sizes, "gelu", post_norm="post_ffw_norm"))

        super().__init__(tensors, sizes, [spec.kv_shape for spec in specs], block)

    def embed(self, batch: Batch) -> mx.array:
        return super().embed(batch) * self.grown

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        return self.softcap * mx.tanh(super().__call__(batch) / self.softcap)
