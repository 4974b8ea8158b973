"""DeepSeek V2, V3 and R1 (DeepSeek-AI, 2024), and what is built like them: latent attention, experts by groups.

A token leaves one latent behind, from which every head would make its key and value. Here the matrices that would do so
are applied to queries and to results instead (the absorbed form), so that attention reads latents alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import Temperature
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.decoder import Block, Decoder, Half
from edgeinfer.nn.layers import GatedMLP, linear
from edgeinfer.nn.moe import Routing, SparseMLP
from edgeinfer.nn.rope import rotary, yarn_magnitude
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

GLM_FLASH = (47, 48), 154880
"""Layers and vocabulary of GLM-4.7-Flash, whose first files do not say that its router takes sigmoids."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Of a token are kept ``latent`` channels and ``turned`` rotated ones; a head's key has ``plain`` ones besides."""

    sizes: Sizes
    latent: int
    turned: int
    plain: int
    value: int
    turn: ops.Rotary
    scale: float
    temperature: Temperature | None

    @classmethod
    def read(cls, config: Config, tensors: Tensors) -> Self:
        latent = config.read("attention.kv_lora_rank", int)
        sizes = Sizes.read(config, tensors, value_dim=latent)
        turned = config.read("rope.dimension_count", int, maximum=sizes.head_dim)
        if sizes.head_dim != latent + turned or sizes.kv_heads != 1:
            expected = f"{latent} + {turned} channels of one head"
            raise config.error("attention.key_length", f"{sizes.head_dim} of {sizes.kv_heads}; expected {expected}")
        key = config.read("attention.key_length_mla", int, minimum=turned + 1)
        kind = config.read("rope.scaling.type", str, "none")
        share = config.read("rope.scaling.yarn_log_multiplier", float, 0.0, minimum=0) / 0.1
        if kind != "yarn":
            config.expect("rope.scaling.factor", 1.0, None)
        turn = rotary(config, tensors, turned, interleaved=True, all_dims=1.0 if share else 0.0)
        grown = turn.magnitude * yarn_magnitude(config.read("rope.scaling.factor", float, 1.0), share)
        value = config.read("attention.value_length_mla", int)
        scale = grown**2 * key**-0.5
        return cls(sizes, latent, turned, key - turned, value, turn, scale, _temperature(config))


class LatentAttention:
    """x + output(attention of norm(x))."""

    def __init__(self, tensors: Tensors, spec: LatentSpec, layer: int) -> None:
        self.layer, self.spec = layer, spec
        sizes = spec.sizes
        hidden, heads, eps = sizes.hidden, sizes.heads, sizes.eps
        queries = heads * (spec.plain + spec.turned)
        self.attn_q: ops.LinearMap
        if "attn_q.weight" in tensors:
            self.attn_q = linear(tensors, {"attn_q": queries}, hidden, eps, norm="attn_norm")
        else:
            narrow = tensors.rows("attn_q_a.weight")
            first = linear(tensors, {"attn_q_a": narrow}, hidden, eps, norm="attn_norm")
            self.attn_q = ops.chain(first, linear(tensors, {"attn_q_b": queries}, narrow, eps, norm="attn_q_a_norm"))
        kept = {"attn_kv_a_mqa": spec.latent + spec.turned}
        self.attn_kv_a_mqa = linear(tensors, kept, hidden, eps, norm="attn_norm")
        self.attn_kv_a_norm = tensors.vector("attn_kv_a_norm.weight", spec.latent)
        self.attn_k_b = tensors.experts("attn_k_b.weight", heads, spec.latent, spec.plain)
        self.attn_v_b = tensors.experts("attn_v_b.weight", heads, spec.value, spec.latent)
        self.attn_output = linear(tensors, {"attn_output": hidden}, heads * spec.value, eps)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new latents into each chunk's cache."""
        spec, sizes = self.spec, self.spec.sizes
        layers = [view.layers[self.layer] for view in batch.views]
        plain, turned = mx.split(self.attn_q(x).reshape(len(x), sizes.heads, -1), [spec.plain], axis=-1)
        latents, keys = mx.split(self.attn_kv_a_mqa(x), [spec.latent], axis=-1)
        latents = ops.rms_norm(latents, self.attn_kv_a_norm, sizes.eps)
        queries = mx.concatenate([_by_head(plain, self.attn_k_b), self._turned(turned, batch)], axis=-1)
        factors = spec.temperature.factors(batch) if spec.temperature else None
        mixed, written = ops.attend_latents(
            queries if factors is None else queries * factors[..., None],
            mx.concatenate([latents, self._turned(keys[:, None], batch)[:, 0]], axis=-1),
            batch.spans,
            [layer.arrays for layer in layers],
            scale=spec.scale,
            value_dim=spec.latent,
        )
        for layer, arrays in zip(layers, written, strict=True):
            layer.arrays = arrays
        values = _by_head(mixed.reshape(len(x), sizes.heads, spec.latent), self.attn_v_b)
        return self.attn_output(values.reshape(len(x), -1), x)

    def _turned(self, heads: mx.array, batch: Batch) -> mx.array:
        """Rotates (T, H, turned)."""
        parts = [ops.rope(heads[at : at + rows], self.spec.turn, offset) for at, rows, offset in batch.spans]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _by_head(x: mx.array, weight: ops.ExpertWeight) -> mx.array:
    """Every head by a matrix of its own: (T, H, n) -> (T, H, rows)."""
    rows, heads, columns = x.shape
    order = mx.repeat(mx.arange(heads, dtype=mx.int32), rows)
    product = ops.expert_linear(x.swapaxes(0, 1).reshape(-1, columns), weight, order)
    return product.reshape(heads, rows, -1).swapaxes(0, 1)


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        spec = LatentSpec.read(config, tensors)
        sizes = spec.sizes
        gate = "sigmoid" if sizes.layers in GLM_FLASH[0] and sizes.vocabulary == GLM_FLASH[1] else "softmax"
        routing = Routing.read(config, gate, free=True, normalize=False)
        inner = config.read("expert_feed_forward_length", int)
        shared = inner * config.read("expert_shared_count", int, minimum=1)
        dense = config.read("leading_dense_block_count", int, 0)
        if "blk.0.attn_q_a.weight" in tensors:
            config.expect("attention.q_lora_rank", tensors.rows("blk.0.attn_q_a.weight"))

        def block(part: Tensors, layer: int) -> Block:
            second: Half = (
                GatedMLP(part, sizes, "silu")
                if layer < dense
                else SparseMLP(part, sizes, routing, inner, shared=shared)
            )
            return Block(LatentAttention(part, spec, layer), second)

        super().__init__(tensors, sizes, [KVShape(1, sizes.head_dim, latent=True)] * sizes.layers, block)


def _temperature(config: Config) -> Temperature | None:
    scale = config.read("attention.temperature_scale", float, 0.0, minimum=0)
    if not scale:
        return None
    return Temperature(scale, config.read("attention.temperature_length", int, minimum=1))
