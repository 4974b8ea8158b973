"""How the sequences of a model are kept: which layers seal pages, where those lie in a block, what a step needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeinfer import ops
from edgeinfer.cache.formats import KVFormat, Policy
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.state import StateShape
from edgeinfer.ops.paged import PAGE, SINKS, TAIL, WINDOW_STEP, Block, Place, frontier, window_start


@dataclass(frozen=True, slots=True)
class Layout:
    """``places``: one a layer; None where it is kept whole for ever. Without any place all of a sequence is."""

    places: tuple[Place | None, ...]
    block_bytes: int
    by_kernels: bool
    pool: ops.Pool | None = None

    @classmethod
    def of(cls, policy: Policy, shapes: Sequence[KVShape | StateShape]) -> Layout:
        sealed = [
            (form, shape)
            for form, shape in zip(policy.layers, shapes, strict=True)
            if not form.exact and isinstance(shape, KVShape)
        ]
        if not sealed:
            return cls((None,) * len(shapes), 0, False)
        by_kernels = all(ops.page_bytes(shape.head_dim, form.widths) for form, shape in sealed)
        places: list[Place | None] = []
        offset = 0
        for form, shape in zip(policy.layers, shapes, strict=True):
            if form.exact:
                window = shape.window if isinstance(shape, KVShape) and shape.movable else 0
                places.append(Place(0, window) if window else None)
                continue
            assert isinstance(shape, KVShape)  # no other layer has a format
            places.append(Place(offset, 0, form.keys, form.values, form.widths))
            offset += shape.kv_heads * _page_bytes(form, shape, by_kernels)
        return cls(tuple(places), offset, by_kernels, ops.pool(offset) if by_kernels else None)

    @property
    def seals(self) -> bool:
        return self.block_bytes > 0

    @property
    def windows(self) -> frozenset[int]:
        """Of the layers that keep no more than a window."""
        return frozenset(place.window for place in self.places if place is not None and place.window)

    def bytes_per_token(self, shapes: Sequence[KVShape | StateShape]) -> float:
        """What a token takes that many others follow: in codes, or as it is in layers kept whole."""
        whole = sum(shape.bytes_per_token() for place, shape in zip(self.places, shapes, strict=True) if place is None)
        return whole + self.block_bytes / PAGE

    def token_bytes(self, shapes: Sequence[KVShape | StateShape]) -> int:
        """The same in whole bytes, nothing left out."""
        return math.ceil(self.bytes_per_token(shapes))

    def exact_bytes(self, shapes: Sequence[KVShape | StateShape], rows: int) -> int:
        """What a long sequence keeps as it is where it does not keep all so, in steps of up to ``rows`` tokens."""
        kept = {0: SINKS + TAIL + PAGE + rows, **{window: window + WINDOW_STEP + rows for window in self.windows}}
        return sum(
            kept[place.window] * shape.bytes_per_token()
            for place, shape in zip(self.places, shapes, strict=True)
            if place is not None
        )

    def starts(self, position: int) -> dict[int, int]:
        """Where buffers begin for a row at ``position``: by window, 0 for layers that seal."""
        return {0: frontier(position), **{window: window_start(position, window) for window in self.windows}}

    def beginnings(self) -> dict[int, int]:
        """Where they begin before the first row."""
        return {0: SINKS, **dict.fromkeys(self.windows, 0)}

    def pages(self, position: int) -> int:
        """Sealed pages that a row at ``position`` sees."""
        return (frontier(position) - SINKS) // PAGE

    def frames(self, before: dict[int, int], after: dict[int, int], blocks: Sequence[Block], filled: int) -> list[Any]:
        """One for each layer; those of layers kept whole are None."""
        made = {0: ops.frame(SINKS, before[0], after[0], blocks, filled, self.by_kernels)}
        for window in self.windows:
            made[window] = ops.frame(0, before[window], after[window], (), 0, self.by_kernels)
        return [None if place is None else made[place.window] for place in self.places]

    def new_block(self) -> Block:
        return ops.block(self.block_bytes, self.by_kernels, self.pool)


def _page_bytes(form: KVFormat, shape: KVShape, by_kernels: bool) -> int:
    return ops.page_bytes(shape.head_dim, form.widths) if by_kernels else PAGE * form.row_bytes(shape.head_dim)
