"""GLM-4.5 to 4.7, mixture of experts (Zeng et al., 2025): a few dense layers, then experts beside a shared one.

A block past the last one predicts the token after the next; the logits do not depend on it.
"""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.decoder import Block, Decoder, Half
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.moe import Routing, SparseMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

NORM = "post_attention_norm"
"""Stands before the second half, whatever its name says."""


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        routing = Routing.read(config, "sigmoid", free=True, normalize=False)
        inner = config.read("expert_feed_forward_length", int)
        shared = inner * config.read("expert_shared_count", int)
        dense = config.read("leading_dense_block_count", int, 0)
        spec = AttentionSpec(
            sizes,
            scale=sizes.head_dim**-0.5,
            bias="blk.0.attn_q.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
        )
        turn = rotary(config, tensors, config.read("rope.dimension_count", int, sizes.head_dim, maximum=sizes.head_dim))

        def block(part: Tensors, layer: int) -> Block:
            second: Half = (
                GatedMLP(part, sizes, "silu", norm=NORM)
                if layer < dense
                else SparseMLP(part, sizes, routing, inner, norm=NORM, shared=shared)
            )
            return Block(Attention(part, spec, turn, layer), second)

        super().__init__(tensors, sizes, [spec.kv_shape] * sizes.layers, block)
