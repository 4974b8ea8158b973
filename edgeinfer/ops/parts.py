"""What a layer's operations are made of, as plain data: the same for every implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import mlx.core as mx

from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import Weight

Cache: TypeAlias = tuple[mx.array, ...]
"""Keys and values of one layer of one sequence; positions are the last axis but one of each array. Empty at first.

Arrays are values: writing makes new ones, in the old ones' memory when no other sequence holds them. So a copy of the
references is a fork, and the first of the two to write pays for the copy. A recorded forward pass alone writes into
arrays that it is told nobody else reads.
"""


class Span(NamedTuple):
    """Rows of a batch that belong to one sequence, the first of them at position ``offset``."""

    start: int
    rows: int
    offset: int


@dataclass(frozen=True, slots=True)
class MapParts:
    """residual + post_norm(activation(norm(x) @ weights.T + bias)).

    The rows of several weights lie one below the other; with an activation there are two, the gate and what it gates:
    activation(gate) * up. ``norm``, ``post_norm`` and ``bias`` may be missing; the norms share ``eps``.
    """

    weights: Sequence[Weight]
    bias: mx.array | None = None
    norm: mx.array | None = None
    post_norm: mx.array | None = None
    eps: float = 0.0
    activation: str = ""


@dataclass(frozen=True, slots=True)
class HeadsParts:
    """Causal attention of grouped heads over what a cache holds and the new rows themselves.

    A row sees the last ``window`` positions, itself among them (0: all); scores pass ``softcap * tanh(s / softcap)``.
    ``q_norm`` and ``k_norm`` are RMS norms of each head before its rotation. ``sinks``: (H,), a score of each head that
    takes part in the softmax and has no value. Heads that ``borrow`` take queries alone, over a cache that heads that
    ``lend`` have written in the same pass.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: Rotary
    scale: float
    window: int = 0
    softcap: float = 0.0
    q_norm: mx.array | None = None
    k_norm: mx.array | None = None
    eps: float = 0.0
    sinks: mx.array | None = None
    lends: bool = False
    borrows: bool = False


class LinearMap(Protocol):
    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        """x: (T, columns) -> (T, rows), float32; the residual has the shape of the result."""


class GatedExperts(Protocol):
    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """activation(gate of row m's expert) * up. x: (M, columns), experts: (M,) int32 ascending -> (M, rows)."""


class Heads(Protocol):
    def __call__(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        """residual + output(attention). qkv: (T, (H + 2K) * D), every row in one span; residual: (T, hidden) or None.

        Returns (T, hidden), and each span's cache with its rows written.
        """

    def block(
        self, qkv: mx.array, start: int, cache: Cache, residual: mx.array, output: LinearMap
    ) -> tuple[mx.array, Cache]:
        """residual + output(attention) of one sequence's rows, each of which sees all of them, and the first ``start``
        positions of the cache. The rows are written behind these, for nobody else to see."""

    def paged(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], paging: Any, residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        """The same beside sealed pages; paging: ``ops.Paging``, with a frame for each span."""
