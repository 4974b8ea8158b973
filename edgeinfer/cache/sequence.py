"""One sequence: the tokens it holds, and what every layer remembers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from edgeinfer.cache.kv import KVShape, LayerKV
from edgeinfer.cache.state import LayerState, StateShape


class CachedSequence:
    """Tokens with their keys and values. Ids that were sampled on the device are read when somebody asks for them."""

    __slots__ = ("_late", "_tokens", "layers", "length")

    def __init__(self, layers: list[LayerKV | LayerState], tokens: list[int]) -> None:
        self.layers = layers
        self.length = len(tokens)
        self._tokens = tokens
        self._late: list[mx.array] = []

    @classmethod
    def empty(cls, shapes: Sequence[KVShape | StateShape]) -> CachedSequence:
        return cls([shape.empty() for shape in shapes], [])

    @property
    def tokens(self) -> list[int]:
        """The ids of all ``length`` tokens; waits for those that are still being computed."""
        for ids in self._late:
            self._tokens.extend(_to_list(ids))
        self._late.clear()
        return self._tokens

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def keep(self, tokens: Sequence[int] | mx.array, count: int) -> None:
        """Takes the first ``count`` of ``tokens``, whose keys and values are written already."""
        size = tokens.size if isinstance(tokens, mx.array) else len(tokens)
        for layer in self.layers:
            layer.keep(count, size)
        if isinstance(tokens, mx.array):
            self._late.append(tokens[:count])
        else:
            self.tokens.extend(tokens[:count])
        self.length += count

    def reusable(self, length: int) -> int:
        """How many of the first ``length`` tokens another sequence can start with: no part of a recurrent state can."""
        return length if length == self.length or all(layer.cuttable for layer in self.layers) else 0

    def fork(self, length: int | None = None) -> CachedSequence:
        """A sequence of the first ``length`` tokens (default: all) that shares memory until one of the two writes."""
        kept = self.length if length is None else length
        return CachedSequence([layer.share(kept) for layer in self.layers], self.tokens[:kept])

    def common_prefix(self, tokens: Sequence[int]) -> int:
        """How many first tokens are the same."""
        return common_prefix(self.tokens, tokens)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def _to_list(ids: mx.array) -> list[int]:
    values: Any = ids.tolist()
    return list(values)
