"""The small layers: a linear map with its bias, RMS norm, and the gated feed-forward network."""

from __future__ import annotations

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.nn.tensors import Tensors


class Linear:
    """x @ weight.T + bias; the bias where ``bias`` asks for one."""

    def __init__(self, tensors: Tensors, name: str, rows: int, columns: int, bias: bool = False) -> None:
        self.weight = tensors.matrix(f"{name}.weight", rows, columns)
        self.bias = tensors.vector(f"{name}.bias", rows) if bias else None

    def __call__(self, x: mx.array) -> mx.array:
        y = ops.linear(x, self.weight)
        return y if self.bias is None else ops.add(y, self.bias)


class RMSNorm:
    def __init__(self, tensors: Tensors, name: str, size: int, eps: float) -> None:
        self.weight = tensors.vector(f"{name}.weight", size)
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return ops.rms_norm(x, self.weight, self.eps)


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, tensors: Tensors, hidden: int, feed_forward: int, activation: str) -> None:
        self.ffn_gate = Linear(tensors, "ffn_gate", feed_forward, hidden)
        self.ffn_up = Linear(tensors, "ffn_up", feed_forward, hidden)
        self.ffn_down = Linear(tensors, "ffn_down", hidden, feed_forward)
        self.activation = activation

    def __call__(self, x: mx.array) -> mx.array:
        return self.ffn_down(ops.gated(self.ffn_gate(x), self.ffn_up(x), self.activation))
