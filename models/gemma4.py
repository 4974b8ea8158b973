"""Gemma 4, text (Gemma Team, 2026): layers with a window and layers without, each kind with heads of its own size.

Values are normed too, and may be the keys before their norm. The last layers may read the keys and values of earlier
ones, each layer may take an embedding of its own (Gemma 3n), and experts may stand beside the dense network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.layers import GatedMLP, Head, linear
from edgeinfer.nn.moe import Experts, Routing
from edgeinfer.nn.rope import plain_rotary, rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


class Attention:
    """x + post_norm(output(attention of norm(x))). ``borrows``: over what layer ``layer`` has written."""

    def __init__(
        self, tensors: Tensors, spec: AttentionSpec, turn: ops.Rotary, layer: int, lends: bool, borrows: bool
    ) -> None:
        self.layer, self.borrows = layer, borrows
        sizes = spec.sizes
        size, eps = sizes.head_dim, sizes.eps
        self.ends = [sizes.heads * size, (sizes.heads + sizes.kv_heads) * size]
        self.own_values = "attn_v.weight" in tensors and not borrows
        rows = {"attn_q": sizes.heads * size}
        if borrows:
            for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
                tensors.skip(name)
        else:
            rows |= dict.fromkeys(("attn_k", "attn_v") if self.own_values else ("attn_k",), sizes.kv_heads * size)
        self.attn_qkv = linear(tensors, rows, sizes.hidden, eps, norm="attn_norm")
        self.even, self.eps, self.kv_heads = mx.ones(size), eps, sizes.kv_heads
        q_norm = tensors.vector("attn_q_norm.weight", size)
        k_norm = self.even if borrows else tensors.vector("attn_k_norm.weight", size)
        parts = ops.HeadsParts(
            sizes.heads,
            sizes.kv_heads,
            size,
            turn,
            spec.scale,
            spec.window,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=eps,
            lends=lends,
            borrows=borrows,
        )
        output = linear(
            tensors, {"attn_output": sizes.hidden}, sizes.heads * size, eps, post_norm="post_attention_norm"
        )
        self.heads = ops.heads(parts, output)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new keys and values into each chunk's cache."""
        layers = [view.layers[self.layer] for view in batch.views]
        caches = [layer.arrays for layer in layers]
        if self.borrows:
            return self.heads(self.attn_qkv(x), batch.spans, caches, x)[0]
        qkv = self.attn_qkv(x)
        values = qkv[:, self.ends[1] :] if self.own_values else qkv[:, self.ends[0] :]
        values = ops.rms_norm(values.reshape(len(x), self.kv_heads, -1), self.even, self.eps).reshape(len(x), -1)
        x, written = self.heads(mx.concatenate([qkv[:, : self.ends[1]], values], axis=1), batch.spans, caches, x)
        for layer, arrays in zip(layers, written, strict=True):
            layer.arrays = arrays
        return x


class Mixture:
    """x + norm(norm(network) + norm(experts)), the experts chosen by norm(x) without a weight."""

    def __init__(self, tensors: Tensors, sizes: Sizes, routing: Routing, inner: int) -> None:
        hidden = sizes.hidden
        self.routing, self.eps = routing, sizes.eps
        self.network = GatedMLP(tensors, sizes, "gelu", post_norm="post_ffw_norm_1")
        scale = tensors.vector("ffn_gate_inp.scale", hidden)
        self.router_norm = scale * hidden**-0.5
        self.ffn_gate_inp = tensors.matrix("ffn_gate_inp.weight", routing.experts, hidden)
        self.experts = Experts(tensors, routing, hidden, inner, "gelu")
        names = ("pre_ffw_norm_2", "post_ffw_norm_2", "post_ffw_norm")
        self.before, self.behind, self.last = (tensors.vector(f"{name}.weight", hidden) for name in names)

    def __call__(self, x: mx.array) -> mx.array:
        logits = ops.linear(ops.rms_norm(x, self.router_norm, self.eps), self.ffn_gate_inp)
        chosen, weights = self.routing.choose(logits)
        routed = self.experts(ops.rms_norm(x, self.before, self.eps), chosen, weights)
        both = self.network.maps(x) + ops.rms_norm(routed, self.behind, self.eps)
        return x + ops.rms_norm(both, self.last, self.eps)


class LayerEmbedding:
    """x + norm(up(gelu(down(x)) * e)), e of the token and this layer alone."""

    def __init__(self, tensors: Tensors, sizes: Sizes, width: int) -> None:
        self.inp_gate = linear(tensors, {"inp_gate": width}, sizes.hidden, sizes.eps)
        self.proj = linear(tensors, {"proj": sizes.hidden}, width, sizes.eps, post_norm="post_norm")

    def __call__(self, x: mx.array, embedding: mx.array) -> mx.array:
        return self.proj(ops.gated(self.inp_gate(x), embedding, "gelu"), x)


class Model:
    wide: ClassVar[bool] = True

    def __init__(self, config: Config, tensors: Tensors) -> None:
        layers = config.read("block_count", int)
        windowed = config.pattern("attention.sliding_window_pattern", layers, 6)
        config.expect("rope.scaling.type", "none", "linear", None)
        kept = layers - config.read("attention.shared_kv_layers", int, 0, minimum=0, maximum=layers - 1)
        if kept < layers and (kept < 2 or windowed[kept - 2 : kept] != [True, False]):
            raise config.error("attention.shared_kv_layers", f"{layers - kept}; expected a window and then none before")
        specs = _specs(config, tensors, windowed)
        sizes = specs[0].sizes
        head_dim = config.read("attention.key_length", int)
        turns = rotary(config, tensors, head_dim), _near_rotary(config, head_dim)
        self.hidden = sizes.hidden
        self.softcap = config.read("final_logit_softcapping", float, 0.0, minimum=0)
        self.kv_shapes = [KVShape(spec.sizes.kv_heads, spec.sizes.head_dim, whole=True) for spec in specs[:kept]]
        self.token_embd = tensors.matrix("token_embd.weight", sizes.vocabulary, sizes.hidden)
        self.embeddings = _Embeddings(config, tensors, sizes)
        routing = Routing.read(config, "softmax") if config.read("expert_count", int, 0) else None
        experts = config.read("expert_feed_forward_length", int) if routing else 0
        self.blocks = []
        for i, spec in enumerate(specs):
            part = tensors.under(f"blk.{i}.")
            source = i if i < kept else kept - (2 if windowed[i] else 1)
            lends = kept < layers and i in (kept - 2, kept - 1)
            attention = Attention(part, spec, turns[windowed[i]], source, lends, borrows=i >= kept)
            self.blocks.append(Block(part, attention, spec.sizes, routing, experts, self.embeddings.width))
        self.head = Head(tensors, self.token_embd, sizes)

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows: (R, V) float32."""
        x = ops.embed(batch.tokens, self.token_embd) * math.sqrt(self.hidden)
        own = self.embeddings(x, batch)
        for i, block in enumerate(self.blocks):
            x = block(x, batch, None if own is None else own[:, i])
        logits = self.head(batch.wanted(x))
        return self.softcap * mx.tanh(logits / self.softcap) if self.softcap else logits


class Block:
    def __init__(
        self, tensors: Tensors, attention: Attention, sizes: Sizes, routing: Routing | None, experts: int, width: int
    ) -> None:
        self.attention = attention
        self.mlp = (
            Mixture(tensors, sizes, routing, experts)
            if routing is not None and "ffn_gate_inp.weight" in tensors
            else GatedMLP(tensors, sizes, "gelu", post_norm="post_ffw_norm")
        )
        self.own = LayerEmbedding(tensors, sizes, width) if width else None
        scale = "layer_output_scale.weight"
        self.scale = tensors.vector(scale, 1) if scale in tensors else None

    def __call__(self, x: mx.array, batch: Batch, embedding: mx.array | None) -> mx.array:
        """x: (T, hidden), embedding: (T, width) -> (T, hidden)."""
        x = self.mlp(self.attention(x, batch))
        if self.own is not None and embedding is not None:
            x = self.own(x, embedding)
        return x if self.scale is None else x * self.scale


class _Embeddings:
    """What each layer takes of a token: a row of its own, and a projection of the token's embedding."""

    def __init__(self, config: Config, tensors: Tensors, sizes: Sizes) -> None:
        self.width = config.read("embedding_length_per_layer_input", int, 0, minimum=0, maximum=1 << 16)
        self.layers, self.eps = sizes.layers, sizes.eps
        if self.width:
            total = self.width * sizes.layers
            self.table = tensors.matrix("per_layer_token_embd.weight", sizes.vocabulary, total)
            self.projection = tensors.matrix("per_layer_model_proj.weight", total, sizes.hidden)
            self.norm = tensors.vector("per_layer_proj_norm.weight", self.width)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array | None:
        """x: (T, hidden) -> (T, layers, width)."""
        if not self.width:
            return None
        shape = len(x), self.layers, self.width
        rows = ops.embed(batch.tokens, self.table).reshape(shape) * math.sqrt(self.width)
        projected = (ops.linear(x, self.projection) * x.shape[1] ** -0.5).reshape(shape)
        return (ops.rms_norm(projected, self.norm, self.eps) + rows) * math.sqrt(0.5)


def _specs(config: Config, tensors: Tensors, windowed: Sequence[bool]) -> list[AttentionSpec]:
    """One a layer."""
    window = config.read("attention.sliding_window", int, minimum=1)
    kv_heads = config.per_layer("attention.head_count_kv", len(windowed))
    inner = config.per_layer("feed_forward_length", len(windowed))
    near = _near_head_dim(config, config.read("attention.key_length", int))
    config.expect("attention.value_length_swa", near, None)
    specs = []
    for i, each in enumerate(windowed):
        sizes = Sizes.read(config, tensors, kv_heads=kv_heads[i], feed_forward=inner[i])
        sizes = replace(sizes, head_dim=near) if each else sizes
        specs.append(AttentionSpec(sizes, scale=1.0, window=window if each else 0))
    return specs


def _near_head_dim(config: Config, head_dim: int) -> int:
    return config.read("attention.key_length_swa", int, head_dim, minimum=2, maximum=1 << 14)


def _near_rotary(config: Config, head_dim: int) -> ops.Rotary:
    near = _near_head_dim(config, head_dim)
    turned = config.read("rope.dimension_count_swa", int, near, minimum=2, maximum=near)
    return plain_rotary(config.read("rope.freq_base_swa", float, 10000.0, minimum=1), turned)
