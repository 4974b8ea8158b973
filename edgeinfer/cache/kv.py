"""The keys and values of one layer of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops

BLOCK = 256
"""Tokens by which the arrays grow at least."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a layer remembers of a token: ``kv_heads`` keys and values of ``head_dim`` numbers each."""

    kv_heads: int
    head_dim: int

    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * ops.kv_dtype().size


class LayerKV:
    """Keys and values: each (K, capacity, D). Rows past the sequence's length hold nothing.

    Arrays are values: writing makes a new one, in the old one's memory when no other sequence holds it. So a copy of
    the references is a fork, and the first of the two to write pays for the copy.
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: mx.array, values: mx.array) -> None:
        self.keys = keys
        self.values = values

    @classmethod
    def empty(cls, shape: KVShape) -> LayerKV:
        nothing = mx.zeros((shape.kv_heads, 0, shape.head_dim), ops.kv_dtype())
        return cls(nothing, nothing)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def append(self, keys: mx.array, values: mx.array, length: int) -> None:
        """Writes the rows of new tokens behind the first ``length`` ones. keys, values: (L, K, D)."""
        self.keys = _write(self.keys, keys, length)
        self.values = _write(self.values, values, length)

    def share(self, length: int) -> LayerKV:
        """The first ``length`` rows, and no more of them than whole blocks, for another sequence."""
        rows = -(-length // BLOCK) * BLOCK
        if rows >= self.keys.shape[1]:
            return LayerKV(self.keys, self.values)
        return LayerKV(self.keys[:, :rows], self.values[:, :rows])


def _write(stored: mx.array, new: mx.array, length: int) -> mx.array:
    needed = length + new.shape[0]
    kv_heads, capacity, size = stored.shape
    if needed > capacity:
        rows = -(-max(needed, capacity + capacity // 4) // BLOCK) * BLOCK
        stored = mx.concatenate([stored, mx.zeros((kv_heads, rows - capacity, size), stored.dtype)], axis=1)
    rows_first = new.swapaxes(0, 1).astype(stored.dtype)
    return mx.slice_update(stored, rows_first, mx.array([length]), axes=[1])
