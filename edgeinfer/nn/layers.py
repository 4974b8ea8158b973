"""The small layers: linear maps with what surrounds them, and the gated feed-forward network."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.nn.sizes import Sizes
from edgeinfer.nn.tensors import Tensors


def linear(
    tensors: Tensors,
    rows: Mapping[str, int],
    columns: int,
    eps: float,
    *,
    norm: str = "",
    post_norm: str = "",
    bias: bool = False,
) -> ops.LinearMap:
    """residual + post_norm(norm(x) @ weights.T + biases) of tensors by their names in the file.

    ``rows`` names matrices with the same input and gives their sizes.
    """
    return ops.linear_map(
        ops.MapParts(
            weights=[tensors.matrix(f"{name}.weight", count, columns) for name, count in rows.items()],
            bias=mx.concatenate([tensors.vector(f"{name}.bias", rows[name]) for name in rows]) if bias else None,
            norm=tensors.vector(f"{norm}.weight", columns) if norm else None,
            post_norm=tensors.vector(f"{post_norm}.weight", next(iter(rows.values()))) if post_norm else None,
            eps=eps,
        )
    )


class GatedMLP:
    """x + down(activation(gate(norm(x))) * up(norm(x))) (Shazeer, 2020)."""

    def __init__(
        self,
        tensors: Tensors,
        sizes: Sizes,
        activation: str,
        post_norm: str = "",
        *,
        norm: str = "ffn_norm",
        inner: int = 0,
        suffix: str = "",
        fused: bool = False,
    ) -> None:
        """``inner``: channels between, if not as ``sizes`` says. ``fused``: gate and up are one tensor, ``ffn_up``."""
        hidden, inner, eps = sizes.hidden, inner or sizes.feed_forward, sizes.eps
        if fused:
            weights = tensors.split(f"ffn_up{suffix}.weight", (inner, inner), hidden)
        else:
            weights = [tensors.matrix(f"ffn_{name}{suffix}.weight", inner, hidden) for name in ("gate", "up")]
        gain = tensors.vector(f"{norm}.weight", hidden) if norm else None
        ffn_gate_up = ops.linear_map(ops.MapParts(weights, norm=gain, eps=eps, activation=activation))
        ffn_down = linear(tensors, {f"ffn_down{suffix}": hidden}, inner, eps, post_norm=post_norm)
        self.maps = ops.chain(ffn_gate_up, ffn_down)

    def __call__(self, x: mx.array) -> mx.array:
        return self.maps(x, x)


class Head:
    """Logits from hidden states: a norm, and the output matrix or, where the file has none, the embedding's."""

    def __init__(self, tensors: Tensors, token_embd: ops.Weight, sizes: Sizes) -> None:
        self.matrix = tensors.head("output.weight", token_embd, sizes.vocabulary, sizes.hidden)
        self.norm = tensors.vector("output_norm.weight", sizes.hidden)
        self.output = ops.linear_map(ops.MapParts([self.matrix], norm=self.norm, eps=sizes.eps))

    def __call__(self, x: mx.array) -> mx.array:
        return self.output(x)
