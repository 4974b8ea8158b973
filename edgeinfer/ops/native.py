"""The steps of a layer as single C++ operations on the CPU: weights in tiles, activations as bytes, a float16 cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.native import primitives
from edgeinfer.ops import host
from edgeinfer.ops.composed import ComposedHeads
from edgeinfer.ops.paged import Frame, Paging
from edgeinfer.ops.parts import Cache, GatedExperts, HeadsParts, LinearMap, MapParts, Span
from edgeinfer.ops.rotary import Rotary
from edgeinfer.ops.weights import ExpertWeight, PackedExperts, PackedWeight
from edgeinfer.quant.codec import Codec

KV_DTYPE: mx.Dtype = mx.float16
HEAD_DIM_STEP, MOST_HEAD_DIM = 16, 512
GATES = ("silu", "gelu")


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A matrix in the kernels' own layout; exactly the weights of the file."""

    matrix: Any

    @property
    def nbytes(self) -> int:
        return int(self.matrix.nbytes)

    def linear(self, x: mx.array) -> mx.array:
        product: mx.array = primitives.linear([self.matrix])(x)
        return product

    def embed(self, tokens: mx.array) -> mx.array:
        rows: mx.array = primitives.embed(self.matrix, tokens)
        return rows


class TiledExperts:
    """A matrix for each expert; those that rows take are multiplied as one operation."""

    def __init__(self, matrices: Sequence[Any]) -> None:
        self.matrices = matrices
        self._product = primitives.experts([primitives.linear([matrix]) for matrix in matrices])

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)

    def linear(self, x: mx.array, experts: mx.array) -> mx.array:
        product: mx.array = self._product(x, experts)
        return product


def prepare_experts(packed: PackedExperts) -> TiledExperts:
    stacked = packed.stacked
    each = stacked.blocks.reshape(packed.count, -1, stacked.blocks.shape[1])
    return TiledExperts([primitives.pack(stacked.codec.ggml_id, blocks, stacked.shape[1]) for blocks in each])


def gated_experts(gate: ExpertWeight, up: ExpertWeight, activation: str) -> GatedExperts | None:
    """None where there are no kernels for it."""
    if activation not in GATES or not (isinstance(gate, TiledExperts) and isinstance(up, TiledExperts)):
        return None
    pairs = zip(gate.matrices, up.matrices, strict=True)
    made: GatedExperts = primitives.experts([primitives.linear(list(pair), activation=activation) for pair in pairs])
    return made


def paths() -> dict[str, str]:
    """Operation -> what computes it."""
    isa = f"native ({primitives.instruction_set()})"
    return {
        "weights": "tiles of the stored blocks",
        "linear": f"{isa}, activations in int8, sums in float32",
        "expert_linear": f"{isa}, all chosen experts at once",
        "embed": isa,
        "add": f"{isa}, within linear",
        "split_heads": f"{isa}, within attention",
        "rms_norm": f"{isa}, within linear",
        "rope": f"{isa}, within attention",
        "gated": f"{isa}, within linear",
        "recurrence": "numpy (BLAS)",
        "attention": f"{isa}, keys and values in float16",
    }


def use_threads(count: int) -> None:
    """Threads of the pool that all native operations of this process share; no more than it has processors."""
    wanted = min(count, _processors())
    if primitives.threads() != wanted:
        primitives.set_threads(wanted)


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(packed: PackedWeight) -> TiledWeight:
    return TiledWeight(primitives.pack(packed.codec.ggml_id, packed.blocks, packed.shape[1]))


def bits(codec: Codec) -> float:
    """Bits that a prepared weight takes."""
    rows = 16
    return float(8 * primitives.tiled_bytes(codec.ggml_id, rows, codec.weights) / (rows * codec.weights))


def linear_map(parts: MapParts) -> LinearMap | None:
    """None where a weight is not in tiles: one that ``Outline`` did not read."""
    tiled = [weight.matrix for weight in parts.weights if isinstance(weight, TiledWeight)]
    if len(tiled) < len(parts.weights):
        return None
    made: LinearMap = primitives.linear(
        tiled,
        bias=_floats(parts.bias),
        norm=_floats(parts.norm),
        post_norm=_floats(parts.post_norm),
        eps=parts.eps,
        activation=parts.activation,
    )
    return made


def is_native(maps: LinearMap) -> bool:
    return isinstance(maps, primitives.Linear)


def chain(first: LinearMap, then: LinearMap) -> LinearMap:
    both: LinearMap = first.then(then)  # type: ignore[attr-defined]
    return both


def has_heads(head_dim: int) -> bool:
    """Whether heads of this size have kernels."""
    return head_dim % HEAD_DIM_STEP == 0 and 0 < head_dim <= MOST_HEAD_DIM


class NativeHeads:
    """A cache is one float16 array (2, K, capacity, D), its keys in an order of the kernels' own."""

    def __init__(self, parts: HeadsParts, output: LinearMap | None) -> None:
        self._composed = ComposedHeads(parts, output, host)
        self._turn = _Turn.of(parts.rotary)
        self._output = output
        self._heads = primitives.heads(
            parts.heads,
            parts.kv_heads,
            parts.head_dim,
            q_norm=_floats(parts.q_norm),
            k_norm=_floats(parts.k_norm),
            eps=parts.eps,
            scale=parts.scale,
            softcap=parts.softcap,
            window=parts.window,
            interleaved=parts.rotary.interleaved,
            sinks=_floats(parts.sinks),
        )

    def __call__(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        if is_recorded(qkv):
            value: mx.array = self._heads.record(qkv, self._turn.rope, self._output, residual)
            return value, []
        table = self._turn.table(spans)
        append = self._heads.append
        written = [
            append(qkv, table, cache[0] if cache else None, span) for span, cache in zip(spans, caches, strict=True)
        ]
        mixed = self._heads.attend(qkv, table, written, spans, self._output, residual)
        return mixed, [(cache,) for cache in written]

    def block(
        self, qkv: mx.array, start: int, cache: Cache, residual: mx.array, output: LinearMap
    ) -> tuple[mx.array, Cache]:
        rows = qkv.shape[0]
        span = Span(0, rows, start)
        table = self._turn.rope([span])
        written = self._heads.append(qkv, table, cache[0] if cache else None, span)
        last = [Span(row, 1, start + rows - 1) for row in range(rows)]
        mixed: mx.array = self._heads.attend(qkv, table, [written] * rows, last, output, residual)
        return mixed, (written,)

    def paged(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], paging: Paging, residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        if any(isinstance(frame, Frame) for frame in paging.frames):  # a code without kernels
            return self._composed.paged(qkv, spans, caches, paging, residual)
        table, place = self._turn.table(spans), paging.place.native
        append = self._heads.append_moving
        written = [
            append(qkv, table, cache[0] if cache else None, span, frame, place)
            for span, cache, frame in zip(spans, caches, paging.frames, strict=True)
        ]
        mixed = self._heads.attend_sealed(qkv, table, written, spans, paging.frames, place, self._output, residual)
        return mixed, [(cache,) for cache in written]


def page_bytes(head_dim: int, widths: tuple[int, int]) -> int:
    """Bytes of a sealed page of one kv head; 0 where there are no kernels."""
    return int(primitives.page_bytes(head_dim, *widths))


def softcap(x: Any, cap: float) -> mx.array:
    """Of a value that is being recorded."""
    capped: mx.array = x.softcap(cap)
    return capped


def recorder() -> Any:
    """Stands for the tokens of a step while a forward pass is recorded; see ``primitives.Recorder``."""
    return primitives.Recorder()


def is_recorded(x: Any) -> bool:
    return isinstance(x, primitives.Value)


class _Turn:
    """The angles of a step's rows, computed once for all layers that share a rotary embedding."""

    def __init__(self, rotary: Rotary) -> None:
        self.rope = primitives.rope(rotary.frequencies, rotary.magnitude)
        self._spans: Sequence[Span] | None = None
        self._table: Any = None

    @classmethod
    def of(cls, rotary: Rotary) -> _Turn:
        turn = rotary.shared.get(cls)
        if turn is None:
            turn = rotary.shared[cls] = cls(rotary)
        return turn

    def table(self, spans: Sequence[Span]) -> Any:
        if self._spans is not spans:
            self._spans, self._table = spans, self.rope(spans)
        return self._table


def greedy(logits: mx.array) -> mx.array:
    """(T, V) float32 -> (T,) int32."""
    best: mx.array = primitives.argmax(logits)
    return best


def sample(logits: mx.array, u: float, **filters: float) -> mx.array:
    """(V,) float32 -> (1,) int32; see ``primitives.sample``."""
    token: mx.array = primitives.sample(logits, u, **filters)
    return token


def _floats(x: mx.array | None) -> NDArray[np.float32] | None:
    return None if x is None else np.array(x, np.float32)
