"""gpt-oss (OpenAI, 2025): experts in MXFP4, heads with a learned sink, every other layer with a window.

Its file's name has a hyphen where this one has an underscore.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.moe import Routing, SparseMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors, dense=False)
        routing = Routing.read(config, "softmax of the chosen", normalize=False)
        inner = config.read("expert_feed_forward_length", int)
        window = config.read("attention.sliding_window", int, minimum=1)
        far = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, bias=True, output_bias=True, sinks=True)
        near = replace(far, window=window)
        windowed = config.pattern("attention.sliding_window_pattern", sizes.layers, 2)
        specs = [near if each else far for each in windowed]
        turn = rotary(config, tensors, sizes.head_dim)

        def block(part: Tensors, layer: int) -> Block:
            second = SparseMLP(
                part, sizes, routing, inner, norm="post_attention_norm", activation="clamped_swiglu", bias=True
            )
            return Block(Attention(part, specs[layer], turn, layer), second)

        super().__init__(tensors, sizes, [spec.kv_shape for spec in specs], block)
