"""What a forward pass is given: the tokens of all chunks in one row, and where each chunk's lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.cache.kv import LayerKV
from edgeinfer.cache.state import LayerState


@dataclass(frozen=True, slots=True)
class View:
    """One chunk: rows ``start`` to ``stop`` of the batch, behind ``offset`` tokens that ``layers`` already hold."""

    start: int
    stop: int
    offset: int
    layers: Sequence[LayerKV | LayerState]
    wanted: range  # rows of the batch whose logits are asked for
    frames: Sequence[Any] = ()  # one a layer where pages are sealed


@dataclass(frozen=True)
class Batch:
    """Every weight is multiplied once with the T rows of all chunks; only attention looks at chunks one by one."""

    tokens: mx.array  # (T,) int32
    views: Sequence[View]
    trace: list[mx.array] | None = None  # gets the (T, hidden) behind the last block, where somebody wants it
    places: Sequence[ops.Place | None] = ()  # one a layer where pages are sealed

    def paging(self, layer: int) -> ops.Paging | None:
        """How a layer is kept; None: whole."""
        place = self.places[layer] if self.places else None
        return None if place is None else ops.Paging(place, [view.frames[layer] for view in self.views])

    whole: bool = False  # every row of the one chunk sees all of its rows

    @cached_property
    def spans(self) -> list[ops.Span]:
        """Where each chunk's rows lie, and at which position they start."""
        return [ops.Span(view.start, view.stop - view.start, view.offset) for view in self.views]

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Of each row within its sequence: (T,)."""
        return np.concatenate([view.offset + np.arange(view.stop - view.start) for view in self.views])

    @cached_property
    def wanted_rows(self) -> list[int]:
        """Of the batch, in order."""
        return [row for view in self.views for row in view.wanted]

    def wanted(self, x: mx.array) -> mx.array:
        """The rows whose logits are asked for: (T, n) -> (R, n)."""
        rows = self.wanted_rows
        if len(rows) == x.shape[0]:
            return x
        return mx.take(x, mx.array(np.array(rows, np.int32)), axis=0)
