"""Phi 3 and Phi 4 (Abdin et al., 2024): Llama with queries, keys and values in one tensor, gate and up in another.

Long contexts turn by LongRoPE; Phi 4 mini turns three quarters of each head.
"""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec
from edgeinfer.nn.decoder import PreNormDecoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(PreNormDecoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, fused=True, window=_window(config))
        turned = config.read("rope.dimension_count", int, sizes.head_dim, maximum=sizes.head_dim)
        super().__init__(
            spec,
            rotary(config, tensors, turned, long=True),
            tensors,
            lambda part, _: GatedMLP(part, sizes, "silu", fused=True),
        )


def _window(config: Config) -> int:
    """None, as in llama.cpp: files name one whether or not their model has it, and nothing tells them apart."""
    config.read("attention.sliding_window", int, 0)
    return 0
