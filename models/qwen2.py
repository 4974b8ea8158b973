"""Qwen 2 and 2.5, dense (Yang et al., 2024): Llama with biases on queries, keys and values."""

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
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, bias=True)
        super().__init__(spec, rotary(config, tensors, sizes.head_dim), tensors)
