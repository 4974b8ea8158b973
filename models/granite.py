"""Granite 3 and 4 (IBM, 2024), dense: Llama with scales on the embedding, on what each half adds, and on logits."""

from __future__ import annotations

import mlx.core as mx

from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Attention, AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.decoder import Decoder
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class ScaledBlock:
    def __init__(self, attention: Attention, mlp: GatedMLP, scale: float) -> None:
        self.attention = attention
        self.mlp = mlp
        self.scale = scale

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        x = x + self.scale * self.attention.branch(x, batch)
        return x + self.scale * self.mlp.maps(x)


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors)
        for key in ("expert_count", "expert_used_count"):
            config.expect(key, 0, None)
        self.logit_scale = config.read("logit_scale", float, minimum=1e-6)
        self.embedding_scale = config.read("embedding_scale", float, 1.0) or 1.0
        scale = config.read("residual_scale", float, 1.0) or 1.0
        per_head = config.read("attention.scale", float, 0.0, minimum=0) or sizes.head_dim**-0.5
        config.expect("rope.scaling.finetuned", True, None)  # False: without positions
        spec = AttentionSpec(sizes, scale=per_head)
        turn = rotary(config, tensors, sizes.head_dim, interleaved=True)
        super().__init__(
            tensors,
            sizes,
            [spec.kv_shape] * sizes.layers,
            lambda part, layer: ScaledBlock(Attention(part, spec, turn, layer), GatedMLP(part, sizes, "silu"), scale),
        )

    def embed(self, batch: Batch) -> mx.array:
        return super().embed(batch) * self.embedding_scale

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        return super().__call__(batch) / self.logit_scale
