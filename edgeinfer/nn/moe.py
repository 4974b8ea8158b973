"""Mixtures of experts: a router picks a few feed-forward networks for each token (Shazeer et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.formats.config import Config
from edgeinfer.nn.layers import GatedMLP
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors

GATES = {1: "softmax", 2: "sigmoid", 3: "softmax of the chosen"}
"""``expert_gating_func``, in the numbers of llama.cpp."""
LEAST_SUM = 2.0**-14
"""Weights are not divided by less."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts are chosen, and what each one counts."""

    experts: int
    used: int
    gate: str
    normalize: bool  # weights of a token sum up to one
    scale: float = 1.0
    groups: int = 1  # experts are chosen from the best ``groups_used`` of these
    groups_used: int = 1

    @classmethod
    def read(cls, config: Config, gate: str, *, free: bool = False, normalize: bool = True) -> Self:
        """``gate`` and ``normalize`` are the architecture's own; ``free`` lets the file have others.

        Raises CorruptFile where numbers do not fit one another, UnsupportedModel for a gate that is not known.
        """
        experts = config.read("expert_count", int, minimum=1)
        used = config.read("expert_used_count", int, minimum=1, maximum=experts)
        groups = config.read("expert_group_count", int, 1) or 1
        groups_used = config.read("expert_group_used_count", int, groups) or groups
        if groups > 1 and (experts % groups or experts // groups < 2 or groups_used > groups):
            raise config.error("expert_group_count", f"{groups_used} of {groups}; expected groups of {experts} experts")
        number = next(number for number, name in GATES.items() if name == gate)
        config.expect("expert_gating_func", *(GATES if free else (number,)), None)
        if not free:
            config.expect("expert_weights_norm", normalize, None)
        return cls(
            experts,
            used,
            GATES[config.read("expert_gating_func", int, number)],
            config.read("expert_weights_norm", bool, normalize),
            config.read("expert_weights_scale", float, 1.0) or 1.0,
            groups,
            groups_used,
        )

    def choose(self, logits: mx.array, bias: mx.array | None = None) -> tuple[mx.array, mx.array]:
        """logits: (T, experts), bias: (experts,), for the choice alone -> experts and their weights, (T, used)."""
        scores = _scores(logits, self.gate)
        chosen = self.pick(scores if bias is None else scores + bias)
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if self.gate == GATES[3]:
            weights = mx.softmax(weights, axis=-1)
        if self.normalize:
            weights = weights / mx.maximum(mx.sum(weights, axis=-1, keepdims=True), LEAST_SUM)
        return chosen, weights * self.scale

    def pick(self, wanted: mx.array) -> mx.array:
        """The experts with the best scores, in their order: (T, experts) -> (T, used) int32."""
        if self.groups > 1:
            wanted = self._within_groups(wanted)
        return mx.argsort(-wanted, axis=-1)[:, : self.used].astype(mx.int32)

    def _within_groups(self, wanted: mx.array) -> mx.array:
        """Only the groups whose two best experts sum up highest stay (DeepSeek-AI, 2024)."""
        grouped = wanted.reshape(len(wanted), self.groups, -1)
        best = mx.sum(mx.sort(grouped, axis=-1)[..., -2:], axis=-1)
        order = mx.argsort(mx.argsort(-best, axis=-1), axis=-1)
        return mx.where((order < self.groups_used)[..., None], grouped, -mx.inf).reshape(wanted.shape)


def _scores(logits: mx.array, gate: str) -> mx.array:
    if gate == "softmax":
        return mx.softmax(logits, axis=-1)
    return mx.sigmoid(logits) if gate == "sigmoid" else logits


class Experts:
    """Sum over a token's experts of weight * down(activation(gate(h)) * up(h))."""

    def __init__(
        self, tensors: Tensors, routing: Routing, hidden: int, inner: int, activation: str = "silu", bias: bool = False
    ) -> None:
        count = routing.experts
        self.activation, self.inner = activation, inner
        if "ffn_gate_up_exps.weight" in tensors:
            self.gate_up = [tensors.experts("ffn_gate_up_exps.weight", count, 2 * inner, hidden)]
        else:
            self.gate_up = [tensors.experts(f"ffn_{name}_exps.weight", count, inner, hidden) for name in ("gate", "up")]
        self.down = tensors.experts("ffn_down_exps.weight", count, hidden, inner)
        scale = "ffn_down_exps.scale"
        self.scale = tensors.vector(scale, count) if scale in tensors else None
        sizes = {"gate": inner, "up": inner, "down": hidden}
        self.biases = (
            [tensors.dense(f"ffn_{name}_exps.bias", count, size) for name, size in sizes.items()] if bias else None
        )
        self.gated: ops.GatedExperts | None = None
        if len(self.gate_up) == 2 and self.biases is None:
            self.gated = ops.gated_experts(self.gate_up[0], self.gate_up[1], activation)

    def __call__(self, h: mx.array, chosen: mx.array, weights: mx.array) -> mx.array:
        """h: (T, hidden); chosen, weights: (T, used) -> (T, hidden)."""
        used = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = mx.argsort(flat)
        experts, rows = flat[order], h[order // used]
        inner = self.gated(rows, experts) if self.gated is not None else self._inner(rows, experts)
        out = ops.expert_linear(inner, self.down, experts)
        if self.biases is not None:
            out = out + self.biases[2][experts]
        if self.scale is not None:
            out = out * self.scale[experts][:, None]
        in_turn = out[mx.argsort(order)].reshape(len(h), used, -1)
        return mx.sum(in_turn * weights[..., None], axis=1)

    def _inner(self, rows: mx.array, experts: mx.array) -> mx.array:
        products = [ops.expert_linear(rows, each, experts) for each in self.gate_up]
        gate, up = products if len(products) == 2 else mx.split(products[0], [self.inner], axis=1)
        if self.biases is not None:
            gate, up = gate + self.biases[0][experts], up + self.biases[1][experts]
        return ops.gated(gate, up, self.activation)


class SparseMLP:
    """x + experts(norm(x)), and beside them a network that every token takes, where there is one."""

    def __init__(
        self,
        tensors: Tensors,
        sizes: Sizes,
        routing: Routing,
        inner: int,
        *,
        norm: str = "ffn_norm",
        activation: str = "silu",
        bias: bool = False,
        shared: int = 0,
    ) -> None:
        """``inner``, ``shared``: channels within an expert and within the network of all tokens."""
        self.routing, self.eps = routing, sizes.eps
        self.norm = tensors.vector(f"{norm}.weight", sizes.hidden)
        self.ffn_gate_inp = tensors.matrix("ffn_gate_inp.weight", routing.experts, sizes.hidden)
        self.router_bias = tensors.vector("ffn_gate_inp.bias", routing.experts) if bias else None
        selecting = "exp_probs_b.bias"
        self.exp_probs_b = tensors.vector(selecting, routing.experts) if selecting in tensors else None
        self.experts = Experts(tensors, routing, sizes.hidden, inner, activation, bias)
        self.shared = GatedMLP(tensors, sizes, activation, norm="", inner=shared, suffix="_shexp") if shared else None
        gate = "ffn_gate_inp_shexp.weight"
        self.ffn_gate_inp_shexp = tensors.vector(gate, sizes.hidden) if shared and gate in tensors else None

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.branch(x)

    def branch(self, x: mx.array) -> mx.array:
        """What is added to x: (T, hidden) -> (T, hidden)."""
        h = ops.rms_norm(x, self.norm, self.eps)
        logits = ops.linear(h, self.ffn_gate_inp)
        if self.router_bias is not None:
            logits = logits + self.router_bias
        routed = self.experts(h, *self.routing.choose(logits, self.exp_probs_b))
        if self.shared is None:
            return routed
        everyone = self.shared.maps(h)
        if self.ffn_gate_inp_shexp is not None:
            everyone = everyone * mx.sigmoid(mx.sum(h * self.ffn_gate_inp_shexp, axis=1, keepdims=True))
        return routed + everyone
