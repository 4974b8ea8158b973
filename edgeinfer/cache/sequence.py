"""One sequence: the tokens it holds, and what every layer remembers of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from edgeinfer.cache.kv import KVShape, LayerKV
from edgeinfer.cache.layout import Layout
from edgeinfer.cache.state import LayerState, StateShape
from edgeinfer.ops.paged import SINKS, Block


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step of a sequence makes of its pages; it counts once the step has been handed over."""

    starts: dict[int, int]
    blocks: list[Block]
    frames: list[Any]


class CachedSequence:
    """Tokens with their keys and values. Ids that were sampled on the device are read when somebody asks for them.

    With a layout that seals, ``blocks`` hold the pages from position SINKS on, and ``starts`` say where the layers'
    buffers begin behind those: by window, 0 for layers that seal.
    """

    __slots__ = ("_late", "_plan", "_tokens", "blocks", "layers", "layout", "length", "starts")

    def __init__(
        self,
        layers: list[LayerKV | LayerState],
        tokens: list[int],
        layout: Layout,
        blocks: list[Block] | None = None,
        starts: dict[int, int] | None = None,
    ) -> None:
        self.layers = layers
        self.layout = layout
        self.blocks = blocks or []
        self.starts = starts or layout.beginnings()
        self.length = len(tokens)
        self._tokens = tokens
        self._late: list[mx.array] = []
        self._plan: tuple[int, int, Plan] | None = None

    @classmethod
    def empty(cls, shapes: Sequence[KVShape | StateShape], layout: Layout) -> CachedSequence:
        return cls([shape.empty() for shape in shapes], [], layout)

    @property
    def tokens(self) -> list[int]:
        """The ids of all ``length`` tokens; waits for those that are still being computed."""
        for ids in self._late:
            self._tokens.extend(_to_list(ids))
        self._late.clear()
        return self._tokens

    @property
    def nbytes(self) -> int:
        """All that is allocated, pages that others share included."""
        return sum(layer.nbytes for layer in self.layers) + sum(block.nbytes for block in self.blocks)

    def is_plain(self, rows: int) -> bool:
        """Whether a step of ``rows`` tokens sees no page, and all that it sees lies where it would without pages."""
        if self.blocks or self.layout.pages(self.length + rows - 1):
            return False
        return self.starts == self.layout.beginnings() == self.layout.starts(self.length)

    def plan(self, rows: int) -> Plan | None:
        """What a step of ``rows`` tokens needs; None where nothing is ever sealed. Changes nothing."""
        if not self.layout.seals:
            return None
        starts, pages = self.layout.starts(self.length), self.layout.pages(self.length + rows - 1)
        filled = len(self.blocks)
        if (
            self._plan is not None
            and self._plan[:2] == (filled, pages)
            and starts == self.starts == self._plan[2].starts
        ):
            return self._plan[2]
        blocks = self.blocks + [self.layout.new_block() for _ in range(pages - filled)]
        plan = Plan(starts, blocks, self.layout.frames(self.starts, starts, blocks, filled))
        if pages == filled and starts == self.starts:
            self._plan = (filled, pages, plan)
        return plan

    def commit(self, plan: Plan | None) -> None:
        """The step of ``plan`` is on its way."""
        if plan is not None:
            self.blocks, self.starts = list(plan.blocks), plan.starts

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
        del self.blocks[self.layout.pages(self.length) :]

    def reusable(self, length: int) -> int:
        """How many of the first ``length`` tokens another sequence can start with.

        All of them, or fewer where rows that it would see as they are have been let go; no part of a recurrent state.
        """
        if length < self.length and not all(layer.cuttable for layer in self.layers):
            return 0
        if not self.layout.seals:
            return length
        wanted = self.layout.starts(length)
        if all(start <= wanted[window] for window, start in self.starts.items()):
            return length
        return min(length, SINKS) if not any(self.starts[window] for window in self.layout.windows) else 0

    def fork(self, length: int | None = None) -> CachedSequence:
        """A sequence of the first ``length`` tokens (default: all) that shares memory until one of the two writes.

        ``length`` is one that ``reusable`` gives.
        """
        kept = self.length if length is None else length
        layers = [
            layer.share(self._rows(place.window, kept) if place is not None else kept)
            for layer, place in zip(self.layers, self.layout.places, strict=True)
        ]
        starts = self.layout.starts(kept)
        held = {window: min(start, starts[window]) for window, start in self.starts.items()}
        return CachedSequence(layers, self.tokens[:kept], self.layout, self.blocks[: self.layout.pages(kept)], held)

    def checkpoint(self, length: int) -> CachedSequence:
        """A fork with memory of its own, no more than it needs; this sequence goes on writing in place."""
        own = [layer for layer in self.layers if isinstance(layer, LayerKV)]
        shared = [layer.shared for layer in own]
        made = self.fork(length)
        copies = [layer for layer in made.layers if isinstance(layer, LayerKV)]
        for layer in copies:
            layer.arrays, layer.shared = tuple(mx.contiguous(array + 0) for array in layer.arrays), False
        mx.async_eval([layer.arrays for layer in copies])  # type: ignore[no-untyped-call]
        for layer, before in zip(own, shared, strict=True):
            layer.shared = before
        return made

    def _rows(self, window: int, length: int) -> int:
        """Rows of a buffer that the first ``length`` tokens take."""
        start = self.starts[window]
        if window:
            return length - start
        return length if length <= start else SINKS + length - start

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
