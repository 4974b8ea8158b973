"""Qwen 3, dense (Yang et al., 2025): Llama with a norm on each query and key head, and a head size of its own."""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec
from edgeinfer.nn.decoder import PreNormDecoder
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(PreNormDecoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, qk_norm=True)
        super().__init__(spec, rotary(config, tensors, sizes.head_dim), tensors)
