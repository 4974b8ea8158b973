"""What a sequence keeps of a layer whose old keys and values are sealed in pages, and attention over that in numpy.

A buffer holds the first SINKS positions and the latest ones as they are; pages in between lie in codes, in blocks that
span all layers. A row at position p sees codes of the positions before ``frontier(p)`` alone, so that what it sees does
not depend on how many rows a step has, nor on what was tried and taken back. A layer with a window keeps a buffer of
what its next row may see, and nothing sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.ops.parts import Cache, HeadsParts, Span

Floats: TypeAlias = NDArray[np.float32]

PAGE = 128
"""Tokens that are sealed together."""
SINKS = 128
"""First tokens of a sequence, whose keys and values stay as they are: attention comes back to them from everywhere."""
TAIL = 256
"""Latest tokens that a token sees as they are, at least; a page is sealed for it when it lies before all of them."""
WINDOW_STEP = 256
"""Positions by which the start of a window's buffer moves: attention takes so many together."""
_DECODED = 16
"""Pages that are decoded at a time."""


def frontier(position: int) -> int:
    """The first position behind the sinks that a row at ``position`` sees as it is."""
    return max(SINKS, (position + 1 - TAIL) // PAGE * PAGE)


def window_start(position: int, window: int) -> int:
    """Where the buffer of a layer with a window starts for a row at ``position``."""
    return max(0, position + 1 - window) // WINDOW_STEP * WINDOW_STEP


class RowCodec(Protocol):
    """What ``cache.codecs`` offers."""

    def row_bytes(self, head_size: int) -> int: ...

    def encode(self, rows: Floats) -> NDArray[np.uint8]: ...

    def decode(self, packed: NDArray[np.uint8], head_size: int) -> Floats: ...


class Block(Protocol):
    """The sealed pages of PAGE positions, of all layers."""

    @property
    def nbytes(self) -> int: ...

    def memory(self) -> NDArray[np.uint8]:
        """(nbytes,), to be read once the step that seals it is computed."""


class HostBlock:
    """A block in numpy's memory."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes, np.uint8)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def memory(self) -> NDArray[np.uint8]:
        return self._memory


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's pages lie in a block, and how they are coded; one with a window has none and is kept whole."""

    offset: int
    window: int = 0
    keys: RowCodec | None = None
    values: RowCodec | None = None
    widths: tuple[int, int] = (0, 0)  # bits, where there are kernels for the code
    native: tuple[int, int, int] = field(init=False)  # what the native operations take, at every token

    def __post_init__(self) -> None:
        object.__setattr__(self, "native", (self.offset, *self.widths))


@dataclass(frozen=True, slots=True)
class Frame:
    """What a sequence holds around one step: its buffers from ``base`` on before, from ``keep`` on afterwards.

    ``blocks`` reach from position SINKS to the frontier of the step's last row; the first ``filled`` are sealed.
    """

    base: int
    keep: int
    blocks: Sequence[Block] = ()
    filled: int = 0

    def step(
        self, parts: HeadsParts, here: Any, new: New, span: Span, cache: Cache, place: Place
    ) -> tuple[mx.array, Cache]:
        """Attention of a step's rows, (L, H * D) float32, and the buffers after it."""
        return _step(parts, here, new, span, cache, self, place)


@dataclass(frozen=True, slots=True)
class Paging:
    """How one layer of a step is kept: its place, and a frame for each sequence, ``Frame`` or the native one."""

    place: Place
    frames: Sequence[Any]


@dataclass(frozen=True, slots=True)
class New:
    """Heads of the rows of a step: queries (L, H, D), keys and values (L, K, D), normed and rotated by position."""

    queries: mx.array
    keys: mx.array
    values: mx.array


def _step(
    parts: HeadsParts, here: Any, new: New, span: Span, cache: Cache, frame: Frame, place: Place
) -> tuple[mx.array, Cache]:
    from edgeinfer.ops.composed import write_rows

    sinks = 0 if place.keys is None else SINKS
    held = row_of(span.offset, sinks, frame.base)
    if not cache:
        nothing = mx.zeros((parts.kv_heads, 0, parts.head_dim), here.KV_DTYPE)
        cache = (nothing, nothing)
    full = [write_rows(old, rows, held) for old, rows in zip(cache, (new.keys, new.values), strict=True)]
    end = span.offset + span.rows
    arrays = [np.asarray(each) for each in full]
    for index in range(frame.filled, len(frame.blocks)):
        _seal(arrays, row_of(SINKS + index * PAGE, sinks, frame.base), frame.blocks[index], place)
    if frame.keep > frame.base:
        first, last = row_of(frame.keep, sinks, frame.base), row_of(end, sinks, frame.base)
        full = [mx.concatenate([each[:, :sinks], each[:, first:last]], axis=1) for each in full]
    if place.keys is None:
        length = end - frame.keep
        mixed = here.attention(
            new.queries, *full, length, scale=parts.scale, window=parts.window, softcap=parts.softcap, sinks=parts.sinks
        )
    else:
        mixed = mx.array(
            _attend(parts, np.asarray(new.queries), [np.asarray(each) for each in full], span, frame, place)
        )
    return mixed, (full[0], full[1])


def row_of(position: int, sinks: int, base: int) -> int:
    """Where a position lies in a buffer."""
    return position if position < max(sinks, base) else sinks + position - base


def _seal(arrays: Sequence[Floats], row: int, block: Block, place: Place) -> None:
    memory, at = block.memory(), place.offset
    for array, codec in zip(arrays, (place.keys, place.values), strict=True):
        assert codec is not None  # only layers with codecs are given blocks
        size = array.shape[-1]
        coded = codec.encode(np.ascontiguousarray(array[:, row : row + PAGE], np.float32).reshape(-1, size))
        memory[at : at + coded.size] = coded.reshape(-1)
        at += coded.size


def _opened(blocks: Sequence[Block], place: Place, kv_heads: int, size: int) -> tuple[Floats, Floats]:
    """Keys and values of pages that follow each other: (K, pages * PAGE, D) float32."""
    made: list[Floats] = []
    at = place.offset
    for codec in (place.keys, place.values):
        assert codec is not None
        nbytes = kv_heads * PAGE * codec.row_bytes(size)
        rows = np.concatenate([block.memory()[at : at + nbytes].reshape(-1, codec.row_bytes(size)) for block in blocks])
        at += nbytes
        pages = codec.decode(rows, size).reshape(len(blocks), kv_heads, PAGE, size)
        made.append(pages.transpose(1, 0, 2, 3).reshape(kv_heads, -1, size))
    return made[0], made[1]


def _attend(
    parts: HeadsParts, queries: Floats, buffers: Sequence[Floats], span: Span, frame: Frame, place: Place
) -> Floats:
    """(L, H, D) -> (L, H * D): rows that share a frontier together, a few pages at a time."""
    out = np.empty((span.rows, parts.heads * parts.head_dim), np.float32)
    row = 0
    while row < span.rows:
        border = frontier(span.offset + row)
        stop = next((r for r in range(row, span.rows) if frontier(span.offset + r) != border), span.rows)
        out[row:stop] = _rows(
            parts, queries[row:stop], span.offset + row, _segments(parts, buffers, border, span, frame, place)
        )
        row = stop
    return out


def _segments(
    parts: HeadsParts, buffers: Sequence[Floats], border: int, span: Span, frame: Frame, place: Place
) -> Iterator[tuple[int, Floats, Floats]]:
    """All that rows with one frontier see: first position, keys and values (K, S, D)."""
    keys, values = buffers
    end = span.offset + span.rows
    if border == SINKS:
        yield 0, keys[:, :end], values[:, :end]
        return
    yield 0, keys[:, :SINKS], values[:, :SINKS]
    pages = (border - SINKS) // PAGE
    for first in range(0, pages, _DECODED):
        opened = _opened(frame.blocks[first : min(pages, first + _DECODED)], place, parts.kv_heads, parts.head_dim)
        yield SINKS + first * PAGE, *opened
    start, stop = row_of(border, SINKS, frame.keep), row_of(end, SINKS, frame.keep)
    yield border, keys[:, start:stop], values[:, start:stop]


def _rows(parts: HeadsParts, queries: Floats, position: int, segments: Iterator[tuple[int, Floats, Floats]]) -> Floats:
    """Softmax over segments one after the other (Milakov and Gimelshein, 2018)."""
    count, heads, size = queries.shape
    grouped = queries.reshape(count, parts.kv_heads, -1, size).transpose(1, 2, 0, 3) * np.float32(
        parts.scale
    )  # K G L D
    q = np.ascontiguousarray(grouped).reshape(parts.kv_heads, -1, size)
    places = np.tile(np.arange(position, position + count), heads // parts.kv_heads)
    most = np.full((*q.shape[:2], 1), -np.inf, np.float32)
    total, mixed = np.zeros_like(most), np.zeros_like(q)
    for first, keys, values in segments:
        scores = q @ keys.astype(np.float32, copy=False).transpose(0, 2, 1)
        if parts.softcap:
            scores = np.tanh(scores / np.float32(parts.softcap)) * np.float32(parts.softcap)
        scores = np.where(places[:, None] >= first + np.arange(keys.shape[1]), scores, np.float32(-np.inf))
        higher = np.maximum(most, scores.max(axis=-1, keepdims=True))
        weights = np.exp(scores - higher)
        share = np.exp(most - higher)
        total = total * share + weights.sum(axis=-1, keepdims=True)
        mixed = mixed * share + weights @ values.astype(np.float32, copy=False)
        most = higher
    by_head: Any = (mixed / total).reshape(parts.kv_heads, -1, count, size)
    rows: Floats = by_head.transpose(2, 0, 1, 3).reshape(count, -1)
    return rows
