"""Mamba 2 (Dao and Gu, 2024): no attention; each layer hands a state of fixed size from token to token."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.state import Arrays, StateShape
from edgeinfer.formats.config import Config
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.decoder import Decoder
from edgeinfer.nn.layers import linear
from edgeinfer.nn.recurrent import advance, headless_sizes, silu, softplus
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


@dataclass(frozen=True, slots=True)
class MambaSpec:
    sizes: Sizes
    taps: int  # tokens that the convolution sees
    inner: int
    state: int
    heads: int
    groups: int

    @classmethod
    def read(cls, config: Config, tensors: Tensors) -> MambaSpec:
        sizes = headless_sizes(config, tensors)
        taps = config.read("ssm.conv_kernel", int, minimum=2, maximum=64)
        inner = config.read("ssm.inner_size", int, minimum=1, maximum=1 << 20)
        state = config.read("ssm.state_size", int, minimum=1, maximum=1 << 14)
        heads = config.read("ssm.time_step_rank", int, minimum=1, maximum=1 << 14)
        groups = config.read("ssm.group_count", int, minimum=1, maximum=1 << 10)
        if inner % heads or inner % groups or heads % groups:
            raise config.error("ssm.inner_size", f"{inner}; expected whole {heads} heads in {groups} groups")
        return cls(sizes, taps, inner, state, heads, groups)

    @property
    def mixed(self) -> int:
        """Channels of the convolution: inputs, and a key and a query of each group."""
        return self.inner + 2 * self.groups * self.state

    @property
    def shape(self) -> StateShape:
        return StateShape(((self.taps - 1, self.mixed), (self.heads, self.inner // self.heads, self.state)))


class Mixer:
    """x + output(norm(state space(convolution(h)) * silu(gate))), h and gate of norm(x)."""

    def __init__(self, tensors: Tensors, spec: MambaSpec, layer: int) -> None:
        self.layer, self.spec = layer, spec
        sizes, inner, heads = spec.sizes, spec.inner, spec.heads
        rows = {"ssm_in": inner + spec.mixed + heads}
        self.ssm_in = linear(tensors, rows, sizes.hidden, sizes.eps, norm="attn_norm")
        self.kernel = tensors.dense("ssm_conv1d.weight", spec.mixed, spec.taps)
        self.kernel_bias = tensors.vector("ssm_conv1d.bias", spec.mixed)
        self.ssm_dt = tensors.vector("ssm_dt.bias", heads)
        self.ssm_a = tensors.dense("ssm_a", heads, 1)[:, 0]
        self.ssm_d = tensors.dense("ssm_d", heads, 1)
        self.ssm_norm = tensors.dense("ssm_norm.weight", spec.groups, inner // spec.groups)
        self.even = mx.ones(inner // spec.groups)
        self.ssm_out = linear(tensors, {"ssm_out": sizes.hidden}, inner, sizes.eps)

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """x: (T, hidden) -> (T, hidden)."""
        spec = self.spec
        gate, mixed, step = mx.split(self.ssm_in(x), [spec.inner, spec.inner + spec.mixed], axis=1)
        y = advance(batch, self.layer, self._run, (mixed, step)) * silu(gate)
        y = ops.rms_norm(y.reshape(len(x), spec.groups, -1), self.even, spec.sizes.eps) * self.ssm_norm
        return self.ssm_out(y.reshape(len(x), -1), x)

    def _run(self, before: Arrays, inputs: Arrays) -> tuple[mx.array, Arrays]:
        spec, (mixed, step) = self.spec, inputs
        count = len(mixed)
        mixed, window = ops.causal_conv(mixed, before[0], self.kernel)
        ends = [spec.inner, spec.inner + spec.groups * spec.state]
        x, keys, queries = mx.split(silu(mixed + self.kernel_bias), ends, axis=1)
        x = x.reshape(count, spec.heads, -1)
        keys, queries = (each.reshape(count, spec.groups, -1) for each in (keys, queries))
        step = softplus(step + self.ssm_dt)
        y, state = ops.selective_scan(x, step, step * self.ssm_a, keys, queries, before[1])
        return (y + x * self.ssm_d).reshape(count, -1), (window, state)


class Model(Decoder):
    def __init__(self, config: Config, tensors: Tensors) -> None:
        spec = MambaSpec.read(config, tensors)
        super().__init__(
            tensors,
            spec.sizes,
            [spec.shape] * spec.sizes.layers,
            lambda part, layer: Mixer(part, spec, layer),
        )
