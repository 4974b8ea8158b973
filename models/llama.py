"""Llama 1 to 3, Mistral, SmolLM2 and TinyLlama (Touvron et al., 2023).

GGUF stores the query and key channels of this architecture so that a rotated pair lies side by side. Llama 3 scales its
rotary frequencies one by one, with the tensor ``rope_freqs.weight``.
"""

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
        for key in ("expert_count", "expert_used_count"):
            config.expect(key, 0, None)
        spec = AttentionSpec(
            sizes,
            scale=sizes.head_dim**-0.5,
            window=config.read("attention.sliding_window", int, 0),  # Mistral 7B v0.1
        )
        super().__init__(spec, rotary(config, tensors, sizes.head_dim, interleaved=True), tensors)
