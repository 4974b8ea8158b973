"""Qwen 3, mixture of experts (Yang et al., 2025): Qwen 3 with 8 of 128 experts a token in every layer."""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec
from edgeinfer.nn.decoder import PreNormDecoder
from edgeinfer.nn.moe import Routing, SparseMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(PreNormDecoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors, dense=False)
        routing = Routing.read(config, "softmax")
        inner = config.read("expert_feed_forward_length", int, sizes.feed_forward // routing.used)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, qk_norm=True, bias="blk.0.attn_q.bias" in tensors)
        super().__init__(
            spec,
            rotary(config, tensors, sizes.head_dim),
            tensors,
            lambda part, _: SparseMLP(part, sizes, routing, inner),
        )
