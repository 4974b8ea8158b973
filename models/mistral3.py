"""Mistral 3 and Ministral 3, text (Mistral AI, 2025): Llama with YaRN, whose queries grow past the original context."""

from __future__ import annotations

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec, Temperature
from edgeinfer.nn.decoder import PreNormDecoder
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Model(PreNormDecoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        for key in ("expert_count", "expert_used_count"):
            config.expect(key, 0, None)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5, temperature=_temperature(config))
        share = config.read("rope.scaling.yarn_log_multiplier", float, 0.0, minimum=0)
        turn = rotary(config, tensors, sizes.head_dim, interleaved=True, betas=True, all_dims=share)
        super().__init__(spec, turn, tensors)


def _temperature(config: Config) -> Temperature | None:
    scale = config.read("attention.temperature_scale", float, 0.0, minimum=0)
    original = config.read("rope.scaling.original_context_length", int, config.read("context_length", int), minimum=1)
    config.expect("attention.temperature_length", original, None)
    return Temperature(scale, original) if scale else None
