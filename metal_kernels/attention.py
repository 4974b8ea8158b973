"""Causal attention over float16 pages, of up to 16 newest rows and of more: keys and values are read once for many."""

from __future__ import annotations

import mlx.core as mx

from edgeinfer.metal_kernels.launcher import launch

PAGE = 128
"""Tokens of a page."""
SPLIT = 256
"""Tokens that one threadgroup takes."""
MOST_ROWS = 16
MOST_QUERIES = 128
"""Query heads of a KV head times rows."""
HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
WANTED_SIMDGROUPS = 4
BLOCK = 8
"""Rows of one head that a simdgroup takes where there are many."""
SIMDGROUPS = 4


def supports(rows: int, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether there are kernels for heads of this shape."""
    return rows <= MOST_ROWS and rows * (heads // kv_heads) <= MOST_QUERIES and head_dim in HEAD_DIMS


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: mx.array | None = None,
    table: mx.array | None = None,
    split: int = SPLIT,
) -> mx.array:
    """Attention of the newest L tokens over the first ``length`` cached ones, themselves included.

    queries: (L, H, D) float32. keys, values: (K, capacity, D) float16 with whole pages of 128 tokens or, with a
    ``table`` (K, pages of a head) int32 of page numbers, (pages, 128, D). -> (L, H * D) float32. ``sinks``: (H,), a
    score a head that takes part in the softmax and has no value. ``split``: tokens that one threadgroup takes.
    """
    rows, heads, size = queries.shape
    if table is None:
        table = _in_order(keys)
    kv_heads, head_pages = table.shape
    first_split = max(0, length - rows + 1 - window) // split if window else 0
    splits = -(-length // split) - first_split
    per_simdgroup, simdgroups = shares(rows * (heads // kv_heads))
    parts = launch(
        "attention_part",
        [queries.astype(mx.float32), keys, values, table, *map(integer, (head_pages, length, first_split, window)),
         mx.array(scale, mx.float32), mx.array(softcap, mx.float32)],
        [("SIZE", size), ("QUERIES", per_simdgroup), ("SIMDGROUPS", simdgroups), ("SPLIT", split)],
        (32, simdgroups * kv_heads, splits),
        (32, simdgroups, 1),
        [(splits, rows, heads, size), (splits, rows, heads), (splits, rows, heads)],
        [mx.float32] * 3,
    )  # fmt: skip
    (y,) = launch(
        "attention_merge",
        [*parts, mx.zeros(heads) if sinks is None else sinks.astype(mx.float32), integer(splits)],
        [("SIZE", size), ("SINKS", sinks is not None)],
        (32, heads, rows),
        (32, 1, 1),
        [(rows, heads * size)],
        [mx.float32],
    )
    return y


def attend_rows(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    length: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: mx.array | None = None,
    table: mx.array | None = None,
) -> mx.array:
    """As ``attend``, of any number of rows: each key and value is read once for 32 queries."""
    rows, heads, size = queries.shape
    if table is None:
        table = _in_order(keys)
    kv_heads, head_pages = table.shape
    missing = -rows % BLOCK
    padded = mx.pad(queries.astype(mx.float32), [(0, missing), (0, 0), (0, 0)])
    blocks = (rows + missing) // BLOCK * (heads // kv_heads)
    (y,) = launch(
        "attention_rows",
        [padded, keys, values, table, mx.zeros(heads) if sinks is None else sinks.astype(mx.float32),
         *map(integer, (rows, head_pages, length, window)), mx.array(scale, mx.float32),
         mx.array(softcap, mx.float32)],
        [("SIZE", size), ("TOKENS", 32 if size <= PAGE else 16), ("SINKS", sinks is not None)],
        (32, SIMDGROUPS * kv_heads, -(-blocks // SIMDGROUPS)),
        (32, SIMDGROUPS, 1),
        [(rows + missing, heads * size)],
        [mx.float32],
    )  # fmt: skip
    return y[:rows]


def _in_order(keys: mx.array) -> mx.array:
    """The table of pages that follow one another. keys: (K, capacity, D)."""
    kv_heads, capacity = keys.shape[:2]
    return mx.arange(kv_heads * capacity // PAGE, dtype=mx.int32).reshape(kv_heads, -1)


def shares(queries: int) -> tuple[int, int]:
    """Queries a simdgroup, and simdgroups a threadgroup."""
    each = next((share for share in (1, 2, 4) if -(-queries // share) <= WANTED_SIMDGROUPS), 8)
    return each, -(-queries // each)


def integer(value: int) -> mx.array:
    """A scalar of a kernel."""
    return mx.array(value, mx.int32)
