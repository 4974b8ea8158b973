"""Keys and values in sealed pages: sealing them, and attention over them beside what is not sealed.

A page holds 128 tokens of a KV head, in the layout that ``include/pages.h`` describes and the CPU kernels share.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from edgeinfer.metal_kernels.attention import BLOCK, HEAD_DIMS, PAGE, SIMDGROUPS, SPLIT, integer, shares, supports
from edgeinfer.metal_kernels.launcher import launch

SINKS = 128
"""First tokens, which stay as they are."""
TAIL = 256
"""Latest tokens that a token sees as they are, at least."""
WIDTHS = frozenset({(8, 8), (8, 4), (6, 4), (5, 4), (4, 4), (4, 3), (3, 3)})
"""Bits of keys and of values."""
MOST_SCRATCH = 64 << 20
"""Bytes that attention of many rows takes beside its result; more rows are taken one part after the other."""


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Bits of keys and values, for heads of one size."""

    head_dim: int
    key_bits: int
    value_bits: int

    @property
    def supported(self) -> bool:
        return self.head_dim in HEAD_DIMS and (self.key_bits, self.value_bits) in WIDTHS

    @property
    def nbytes(self) -> int:
        """Of a page of one KV head."""
        padded = -(-self.head_dim // 32) * 32
        scales = 2 * -(-self.head_dim // PAGE) * 2
        return PAGE * (padded * self.key_bits + self.head_dim * self.value_bits) // 8 + PAGE * scales

    @property
    def template(self) -> list[tuple[str, int]]:
        return [("SIZE", self.head_dim), ("KEY_BITS", self.key_bits), ("VALUE_BITS", self.value_bits)]


@dataclass(frozen=True, slots=True)
class Held:
    """What rows see of a layer.

    ``keys`` and ``values``, (K, capacity, D) float16, are the sinks and then positions from ``base`` on; ``packed``,
    (places, K, bytes of a page), holds sealed pages at the places that ``table`` names, from position SINKS on.
    """

    keys: mx.array
    values: mx.array
    base: int
    packed: mx.array
    table: mx.array  # (pages,) int32
    signs: mx.array  # (D,) float32, of the rotation


def seal(keys: mx.array, values: mx.array, first: int, count: int, form: PageFormat, signs: mx.array) -> mx.array:
    """``count`` pages that follow one another from row ``first`` on. keys, values: (K, capacity, D) float16 ->
    (count, K, bytes of a page) uint8."""
    kv_heads = keys.shape[0]
    (page,) = launch(
        "seal",
        [keys, values, signs, integer(first)],
        form.template,
        (128, 4 * kv_heads, 2 * count),
        (128, 1, 1),
        [(count, kv_heads, form.nbytes)],
        [mx.uint8],
    )
    return page


def rotate(x: mx.array, signs: mx.array) -> mx.array:
    """(L, H, D) float32, each head rotated as keys are."""
    rows, heads, size = x.shape
    (y,) = launch("rotate", [x, signs], [("SIZE", size)], (32, heads, rows), (32, 1, 1), [x.shape], [mx.float32])
    return y


def attend(
    queries: mx.array, position: int, held: Held, form: PageFormat, *, scale: float, softcap: float = 0.0
) -> mx.array:
    """Attention of L rows that follow one another from ``position`` on, whose own keys and values are in the buffer.

    queries: (L, H, D) float32 -> (L, H * D) float32. Up to 16 rows have the same bits alone and together.
    """
    rows, heads, size = queries.shape
    queries = queries.astype(mx.float32)
    if supports(rows, heads, held.keys.shape[0], size):
        return _few_rows(queries, position, held, form, scale, softcap)
    most = max(BLOCK, MOST_SCRATCH // (4 * 4 * heads * size) // BLOCK * BLOCK)  # two parts, and queries twice
    parts = [
        _many_rows(queries[row : row + most], position + row, held, form, scale, softcap)
        for row in range(0, rows, most)
    ]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _few_rows(queries: mx.array, position: int, held: Held, form: PageFormat, scale: float, softcap: float) -> mx.array:
    rows, heads, size = queries.shape
    kv_heads = held.keys.shape[0]
    sealed = _sealed_tokens(position + rows - 1)
    plain = 1 - (-(position + rows - held.base) // PAGE)
    splits = plain - (-sealed // SPLIT)
    per_simdgroup, simdgroups = shares(rows * (heads // kv_heads))
    scalars = [*map(integer, (position, held.base, sealed, plain)), mx.array(scale, mx.float32),
               mx.array(softcap, mx.float32)]  # fmt: skip
    parts = launch(
        "sealed_part",
        [queries, rotate(queries, held.signs), held.keys, held.values, held.packed, held.table, *scalars],
        [*form.template, ("QUERIES", per_simdgroup), ("SIMDGROUPS", simdgroups), ("SPLIT", SPLIT)],
        (32, simdgroups * kv_heads, splits),
        (32, simdgroups, 1),
        [(splits, rows, heads, size), (splits, rows, heads), (splits, rows, heads)],
        [mx.float32] * 3,
    )
    return _merged(parts, held.signs, rows, plain)


def _many_rows(
    queries: mx.array, position: int, held: Held, form: PageFormat, scale: float, softcap: float
) -> mx.array:
    rows, heads, size = queries.shape
    kv_heads = held.keys.shape[0]
    missing = -rows % BLOCK
    padded = mx.pad(queries, [(0, missing), (0, 0), (0, 0)])
    blocks = (rows + missing) // BLOCK * (heads // kv_heads)
    scalars = [*map(integer, (rows, position, held.base)), mx.array(scale, mx.float32), mx.array(softcap, mx.float32)]
    parts = launch(
        "sealed_rows",
        [padded, rotate(padded, held.signs), held.keys, held.values, held.packed, held.table, *scalars],
        [*form.template, ("TOKENS", 32 if size <= PAGE else 16)],
        (32, SIMDGROUPS * kv_heads, 2 * -(-blocks // SIMDGROUPS)),
        (32, SIMDGROUPS, 1),
        [(2, rows + missing, heads, size), (2, rows + missing, heads), (2, rows + missing, heads)],
        [mx.float32] * 3,
    )
    return _merged(parts, held.signs, rows, 1)


def _merged(parts: list[mx.array], signs: mx.array, rows: int, plain: int) -> mx.array:
    splits, _, heads, size = parts[0].shape
    (y,) = launch(
        "sealed_merge",
        [*parts, signs, integer(splits), integer(plain)],
        [("SIZE", size)],
        (32, heads, rows),
        (32, 1, 1),
        [(rows, heads * size)],
        [mx.float32],
    )
    return y


def _sealed_tokens(position: int) -> int:
    """That a row at ``position`` sees in codes."""
    return max(0, (position + 1 - TAIL) // PAGE * PAGE - SINKS)
