"""GLM-4-0414 (Zhipu AI, 2025): norms before and after both halves of a block, half of each head rotated."""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, bias="blk.0.attn_q.bias" in tensors)
        turned = config.read("rope.dimension_count", int, sizes.head_dim, maximum=sizes.head_dim)
        turn = rotary(config, tensors, turned, interleaved=True)

        def block(part: Tensors, layer: int) -> Block:
            attention = Attention(part, spec, turn, layer, post_norm="post_attention_norm")
            return Block(attention, GatedMLP(part, sizes, "silu", post_norm="post_ffw_norm", fused=True))

        super().__init__(tensors, sizes, [spec.kv_shape] * sizes.layers, block)
