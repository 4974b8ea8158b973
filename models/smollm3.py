"""SmolLM 3 (Hugging Face, 2025): Llama in which every fourth layer knows no positions (Yang et al., 2025)."""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import rotary, still_rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

PERIOD = 4


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5)
        turn, still = rotary(config, tensors, sizes.head_dim, interleaved=True), still_rotary(sizes.head_dim)

        def block(part: Tensors, layer: int) -> Block:
            chosen = turn if (layer + 1) % PERIOD else still
            return Block(Attention(part, spec, chosen, layer), GatedMLP(part, sizes, "silu"))

        super().__init__(tensors, sizes, [spec.kv_shape] * sizes.layers, block)
