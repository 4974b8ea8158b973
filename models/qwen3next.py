"""Qwen 3 Next (Qwen Team, 2025): three layers with a gated delta rule to one with gated attention; experts in each.

A block past the last one predicts the token after the next; the logits do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.state import Arrays, StateShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.attention import AttentionSpec
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.decoder import Block, Decoder
from edgeinfer.nn.layers import linear
from edgeinfer.nn.moe import Routing, SparseMLP
from edgeinfer.nn.recurrent import advance, silu, softplus
from edgeinfer.nn.rope import rotary
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

PERIOD = 4


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    sizes: Sizes
    taps: int  # tokens that the convolution sees
    head: int
    key_heads: int
    value_heads: int

    @classmethod
    def read(cls, config: Config, sizes: Sizes) -> DeltaSpec:
        taps = config.read("ssm.conv_kernel", int, minimum=2, maximum=64)
        head = config.read("ssm.state_size", int, minimum=1, maximum=1 << 12)
        key_heads = config.read("ssm.group_count", int, minimum=1, maximum=1 << 10)
        value_heads = config.read("ssm.time_step_rank", int, minimum=1, maximum=1 << 10)
        if value_heads % key_heads:
            raise config.error("ssm.time_step_rank", f"{value_heads}; expected a multiple of the {key_heads} key heads")
        config.expect("ssm.inner_size", value_heads * head)
        return cls(sizes, taps, head, key_heads, value_heads)

    @property
    def keys(self) -> int:
        return self.key_heads * self.head

    @property
    def values(self) -> int:
        return self.value_heads * self.head

    @property
    def mixed(self) -> int:
        return 2 * self.keys + self.values

    @property
    def shape(self) -> StateShape:
        return StateShape(((self.taps - 1, self.mixed), (self.value_heads, self.head, self.head)))


class GatedDeltaNet:
    """x + output(norm(delta rule(convolution(q, k, v))) * silu(gate)), all of norm(x) (Yang et al., 2024)."""

    def __init__(self, tensors: Tensors, spec: DeltaSpec, layer: int) -> None:
        self.layer, self.spec = layer, spec
        hidden, eps = spec.sizes.hidden, spec.sizes.eps
        rows = {"attn_qkv": spec.mixed, "attn_gate": spec.values, "ssm_ba": 2 * spec.value_heads}
        self.inputs = linear(tensors, rows, hidden, eps, norm="attn_norm")
        self.kernel = tensors.dense("ssm_conv1d.weight", spec.mixed, spec.taps)
        self.ssm_dt = tensors.vector("ssm_dt.bias", spec.value_heads)
        self.ssm_a = tensors.vector("ssm_a", spec.value_heads)
        self.ssm_norm = tensors.vector("ssm_norm.weight", spec.head)
        self.unit = mx.full(spec.head, spec.head**-0.5)  # makes of a norm of 1 a channel one of the whole head
        self.ssm_out = linear(tensors, {"ssm_out": hidden}, spec.values, eps)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        spec = self.spec
        mixed, gate, rates = mx.split(self.inputs(x), [spec.mixed, spec.mixed + spec.values], axis=1)
        beta, alpha = mx.split(rates.reshape(len(x), spec.key_heads, -1), 2, axis=-1)
        beta, alpha = (each.reshape(len(x), spec.value_heads) for each in (beta, alpha))
        decay = softplus(alpha + self.ssm_dt) * self.ssm_a
        y = advance(batch, self.layer, self._run, (mixed, decay, mx.sigmoid(beta)))
        y = ops.rms_norm(y, self.ssm_norm, spec.sizes.eps).reshape(len(x), -1)
        return self.ssm_out(y * silu(gate), x)

    def _run(self, before: Arrays, inputs: Arrays) -> tuple[mx.array, Arrays]:
        spec, (mixed, decay, beta) = self.spec, inputs
        mixed, window = ops.causal_conv(mixed, before[0], self.kernel)
        q, k, v = mx.split(silu(mixed), [spec.keys, 2 * spec.keys], axis=1)
        q, k = (self._unit_heads(each) for each in (q, k))
        v = v.reshape(len(v), spec.value_heads, spec.head)
        y, state = ops.gated_delta(q * spec.head**-0.5, k, v, decay, beta, before[1])
        return y, (window, state)

    def _unit_heads(self, x: mx.array) -> mx.array:
        """Heads of length 1, each repeated for the value heads that share it: (L, value_heads, D)."""
        spec = self.spec
        heads = ops.rms_norm(x.reshape(len(x), spec.key_heads, -1), self.unit, spec.sizes.eps / spec.head)
        return mx.repeat(heads, spec.value_heads // spec.key_heads, axis=1)


class GatedAttention:
    """x + output(attention(q, k, v) * sigmoid(gate)), all of norm(x)."""

    def __init__(self, tensors: Tensors, spec: AttentionSpec, turn: ops.Rotary, layer: int) -> None:
        self.layer, self.sizes = layer, spec.sizes
        sizes = spec.sizes
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        rows = {"attn_q": 2 * queries, "attn_k": keys, "attn_v": keys}
        self.attn_qkv = linear(tensors, rows, sizes.hidden, sizes.eps, norm="attn_norm")
        q_norm, k_norm = (tensors.vector(f"attn_{each}_norm.weight", sizes.head_dim) for each in "qk")
        parts = ops.HeadsParts(
            sizes.heads, sizes.kv_heads, sizes.head_dim, turn, spec.scale, q_norm=q_norm, k_norm=k_norm, eps=sizes.eps
        )
        self.heads = ops.heads(parts, None)
        self.attn_output = linear(tensors, {"attn_output": sizes.hidden}, queries, sizes.eps)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden); writes the new keys and values into each chunk's cache."""
        layers = [view.layers[self.layer] for view in batch.views]
        queries = self.sizes.heads * self.sizes.head_dim
        both, rest = mx.split(self.attn_qkv(x), [2 * queries], axis=1)
        q, gate = mx.split(both.reshape(len(x), self.sizes.heads, -1), 2, axis=-1)  # a head's query, then its gate
        qkv = mx.concatenate([q.reshape(len(x), queries), rest], axis=1)
        mixed, written = self.heads(qkv, batch.spans, [layer.arrays for layer in layers], None)
        for layer, arrays in zip(layers, written, strict=True):
            layer.arrays = arrays
        return self.attn_output(mixed * mx.sigmoid(gate.reshape(len(x), queries)), x)


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        sizes = Sizes.read(config, tensors, dense=False)
        delta = DeltaSpec.read(config, sizes)
        routing = Routing.read(config, "softmax")
        inner = config.read("expert_feed_forward_length", int, sizes.feed_forward // routing.used)
        shared = config.read("expert_shared_feed_forward_length", int, sizes.feed_forward)
        spec = AttentionSpec(sizes, scale=sizes.head_dim**-0.5)
        turn = rotary(config, tensors, config.read("rope.dimension_count", int, sizes.head_dim, maximum=sizes.head_dim))
        period = config.read("full_attention_interval", int, PERIOD, minimum=1)
        recurrent = config.pattern("attention.recurrent_layers", sizes.layers, period)

        def block(part: Tensors, layer: int) -> Block:
            first = GatedDeltaNet(part, delta, layer) if recurrent[layer] else GatedAttention(part, spec, turn, layer)
            return Block(first, SparseMLP(part, sizes, routing, inner, norm="post_attention_norm", shared=shared))

        kept = KVShape(sizes.kv_heads, sizes.head_dim, whole=True)
        super().__init__(tensors, sizes, [delta.shape if each else kept for each in recurrent], block)
