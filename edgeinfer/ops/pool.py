"""Sealed pages in a GPU's memory, and a step of a layer over them by the Metal kernels: lazy, nothing waits.

The pages of a layer lie in one array, its slab; a block has a place in the slabs of all layers, for as long as somebody
holds it. Slabs are values, as all arrays of MLX are: writing a page makes a new one, in the old one's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from weakref import finalize

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.metal_kernels import attention, sealed
from edgeinfer.metal_kernels.sealed import Held, PageFormat
from edgeinfer.ops.composed import BLOCK, write_rows
from edgeinfer.ops.implementation import Implementation
from edgeinfer.ops.paged import PAGE, SINKS, New, Place, frontier, row_of
from edgeinfer.ops.parts import Cache, HeadsParts, Span
from edgeinfer.quant.rotation import signs

_LEAST_PLACES = 8


class Pool:
    """The slabs of a model's layers, by where a layer's pages lie in a block: (places, K, bytes of a page) uint8."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.slabs: dict[int, mx.array] = {}
        self._places = 0
        self._free: list[int] = []

    def take(self) -> int:
        """A place that nobody has."""
        if self._free:
            return self._free.pop()
        self._places += 1
        return self._places - 1

    def give_back(self, place: int) -> None:
        self._free.append(place)

    def write(self, offset: int, places: Sequence[int], pages: mx.array) -> None:
        """Puts pages of one layer, (n, K, bytes of a page), at n places."""
        slab = self.slabs.get(offset)
        if slab is None:
            slab = mx.zeros((0, *pages.shape[1:]), mx.uint8)
        held = slab.shape[0]
        if self._places > held:
            more = max(_LEAST_PLACES, self._places - held, held // 4)
            slab = mx.concatenate([slab, mx.zeros((more, *pages.shape[1:]), mx.uint8)])
        slab[mx.array(list(places))] = pages
        mx.async_eval(slab)  # type: ignore[no-untyped-call]
        self.slabs[offset] = slab


class PoolBlock:
    """The sealed pages of PAGE positions, of all layers. What is put into its memory before it is sealed goes to the
    pool layer by layer, with the first step that needs it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.place = pool.take()
        self.sealed = False
        self._memory: NDArray[np.uint8] | None = None
        self._moved: dict[int, int] = {}  # bytes of layers that have gone to the pool, by their offset
        finalize(self, pool.give_back, self.place)

    @property
    def nbytes(self) -> int:
        return self.pool.block_bytes

    @property
    def waits(self) -> bool:
        """Whether anything is yet to go to the pool."""
        return self._memory is not None

    def memory(self) -> NDArray[np.uint8]:
        """(nbytes,): its own, to be written to, until the block is sealed; a copy of what the pool holds from then on,
        and only in the thread that steps are made in."""
        if self.sealed:
            slabs = self.pool.slabs
            return np.concatenate([np.array(slabs[offset][self.place]).reshape(-1) for offset in sorted(slabs)])
        if self._memory is None:
            self._memory = np.empty(self.nbytes, np.uint8)
        return self._memory

    def move(self, offset: int, shape: tuple[int, int]) -> None:
        """The pages of one layer, (K, bytes of a page), to the pool, if they have not gone yet."""
        if self._memory is None or offset in self._moved:
            return
        size = shape[0] * shape[1]
        self.pool.write(offset, [self.place], mx.array(self._memory[offset : offset + size].reshape(1, *shape)))
        self._moved[offset] = size
        if sum(self._moved.values()) == self.nbytes:
            self._memory, self.sealed = None, True


class PoolFrame:
    """As ``paged.Frame``, of blocks in a pool."""

    def __init__(self, base: int, keep: int, blocks: Sequence[PoolBlock], filled: int) -> None:
        self.base, self.keep, self.blocks, self.filled = base, keep, blocks, filled
        self._table = mx.array([block.place for block in blocks], mx.int32)
        self._waiting = [block for block in blocks[:filled] if block.waits]

    def step(
        self, parts: HeadsParts, here: Implementation, new: New, span: Span, cache: Cache, place: Place
    ) -> tuple[mx.array, Cache]:
        """Attention of a step's rows, (L, H * D) float32, and the buffers after it."""
        sinks = 0 if place.keys is None else SINKS
        if not cache:
            nothing = mx.zeros((parts.kv_heads, 0, parts.head_dim), here.KV_DTYPE)
            cache = (nothing, nothing)
        at, end = row_of(span.offset, sinks, self.base), span.offset + span.rows
        keys, values = (write_rows(old, rows, at) for old, rows in zip(cache, (new.keys, new.values), strict=True))
        if sinks:
            self._complete(parts, keys, values, place)
        if self.keep > self.base:
            keys, values = (self._moved(each, sinks, end) for each in (keys, values))
        if sinks and frontier(end - 1) > SINKS:
            mixed = self._attend(parts, new.queries, keys, values, span.offset, place)
        else:
            mixed = _attend_whole(parts, here, new.queries, keys, values, row_of(end, sinks, self.keep), bool(sinks))
        return mixed, (keys, values)

    def _complete(self, parts: HeadsParts, keys: mx.array, values: mx.array, place: Place) -> None:
        """Brings the pages of a layer to the pool: those that wait in memory, and those that are sealed now."""
        form = PageFormat(parts.head_dim, *place.widths)
        for block in self._waiting:
            block.move(place.offset, (parts.kv_heads, form.nbytes))
        fresh = self.blocks[self.filled :]
        if fresh:
            first = row_of(SINKS + self.filled * PAGE, SINKS, self.base)
            pages = sealed.seal(keys, values, first, len(fresh), form, _signs(parts.head_dim))
            fresh[0].pool.write(place.offset, [block.place for block in fresh], pages)
            for block in fresh:
                block.sealed = True

    def _moved(self, rows: mx.array, sinks: int, end: int) -> mx.array:
        """A buffer without what lies between the sinks and ``keep``."""
        first, last = row_of(self.keep, sinks, self.base), row_of(end, sinks, self.base)
        capacity = -(-(last - first) // BLOCK) * BLOCK
        return mx.concatenate([rows[:, :sinks], rows[:, first : first + capacity]], axis=1)

    def _attend(
        self, parts: HeadsParts, queries: mx.array, keys: mx.array, values: mx.array, position: int, place: Place
    ) -> mx.array:
        packed = self.blocks[0].pool.slabs[place.offset]
        held = Held(keys, values, self.keep, packed, self._table, _signs(parts.head_dim))
        form = PageFormat(parts.head_dim, *place.widths)
        return sealed.attend(queries, position, held, form, scale=parts.scale, softcap=parts.softcap)


def _attend_whole(
    parts: HeadsParts,
    here: Implementation,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    seals: bool,
) -> mx.array:
    """Over the first rows of the buffers alone. In a layer that seals, few rows take splits of the sealed kernels'
    size: so a row has the same bits beside one that sees sealed pages already."""
    scale, softcap = parts.scale, parts.softcap
    if seals and attention.supports(queries.shape[0], parts.heads, parts.kv_heads, parts.head_dim):
        return attention.attend(queries, keys, values, length, scale=scale, softcap=softcap, split=PAGE)
    return here.attention(
        queries, keys, values, length, scale=scale, window=parts.window, softcap=softcap, sinks=parts.sinks
    )


@cache
def _signs(head_dim: int) -> mx.array:
    return mx.array(signs(head_dim))
