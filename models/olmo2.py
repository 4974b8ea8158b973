"""OLMo 2 and 3 (OLMo Team, 2024): norms behind each half of a block alone, and on the queries of all heads together.

OLMo 3 sees a window in most layers; only the others scale their rotation.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import plain_rotary, rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        window = config.read("attention.sliding_window", int, 0)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, joint_norm=True)
        far = spec, rotary(config, tensors, sizes.head_dim)
        base = config.read("rope.freq_base", float, 10000.0)
        near = replace(spec, window=window), plain_rotary(base, sizes.head_dim)
        windowed = config.pattern("attention.sliding_window_pattern", sizes.layers, 4)
        kinds = [near if each and window else far for each in windowed]

        def block(part: Tensors, layer: int) -> Block:
            attention = Attention(part, *kinds[layer], layer, norm="", post_norm="post_attention_norm")
            return Block(attention, GatedMLP(part, sizes, "silu", norm="", post_norm="post_ffw_norm"))

        super().__init__(tensors, sizes, [kind[0].kv_shape for kind in kinds], block)
