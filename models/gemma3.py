"""Gemma 3, text (Gemma Team, 2025): five layers that see a window to one that sees everything, each with its own RoPE.

Norms stand before and after both halves of a block; GGUF stores their weights with the 1 of ``1 + w`` added.
"""

from __future__ import annotations

import math
from typing import ClassVar

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import GatedMLP, Head
from edgeinfer.nn.rope import plain_rotary, rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

LAYERS_OF_27B = 62
"""Scales queries by its embedding's share of a head (query_pre_attn_scalar = 168); GGUF has no key that says so."""


class Block:
    def __init__(self, spec: AttentionSpec, turn: ops.Rotary, tensors: Tensors, layer: int) -> None:
        self.attention = Attention(tensors, spec, turn, layer, post_norm="post_attention_norm")
        self.mlp = GatedMLP(tensors, spec.sizes, "gelu", post_norm="post_ffw_norm")

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        return self.mlp(self.attention(x, batch))


class Model:
    wide: ClassVar[bool] = True

    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        self.hidden = sizes.hidden
        self.softcap = config.read("final_logit_softcapping", float, 0.0, minimum=0)
        period = config.read("attention.sliding_window_pattern", int, 6, minimum=1)
        window = config.read("attention.sliding_window", int, minimum=1)
        near = (_spec(config, sizes, window), plain_rotary(_near_base(config), sizes.head_dim))
        far = (_spec(config, sizes, 0), rotary(config, tensors, sizes.head_dim))
        kinds = [far if (i + 1) % period == 0 else near for i in range(sizes.layers)]
        self.kv_shapes: list[KVShape] = [spec.kv_shape for spec, _ in kinds]
        self.token_embd = tensors.matrix("token_embd.weight", sizes.vocabulary, sizes.hidden)
        self.blocks = [Block(*kind, tensors.under(f"blk.{i}."), i) for i, kind in enumerate(kinds)]
        self.head = Head(tensors, self.token_embd, sizes)

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        x = ops.embed(batch.tokens, self.token_embd) * math.sqrt(self.hidden)
        for block in self.blocks:
            x = block(x, batch)
        logits = self.head(batch.wanted(x))
        return ops.softcap(logits, self.softcap) if self.softcap else logits


def _near_base(config: Config) -> float:
    """The RoPE base of the layers with a window; older files leave it out."""
    return config.read("rope.freq_base_swa", float, 10000.0, minimum=1)


def _spec(config: Config, sizes: Sizes, window: int) -> AttentionSpec:
    per_head = sizes.hidden / sizes.heads if sizes.layers == LAYERS_OF_27B else sizes.head_dim
    return AttentionSpec(
        sizes,
        scale=per_head**-0.5,
        window=window,
        softcap=config.read("attn_logit_softcapping", float, 0.0, minimum=0),
        qk_norm=True,
    )
