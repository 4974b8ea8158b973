"""Steps over sealed pages by the Metal kernels against the same steps in numpy, for ``edgeinfer doctor --kernels``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import mlx.core as mx
import numpy as np

from edgeinfer.cache.formats import FORMATS, KVFormat
from edgeinfer.metal_kernels.attention import HEAD_DIMS, MOST_ROWS
from edgeinfer.metal_kernels.sealed import PageFormat
from edgeinfer.ops import metal, plain
from edgeinfer.ops.kernel_checks import Verdict, verdict
from edgeinfer.ops.paged import PAGE, SINKS, Frame, HostBlock, New, Place, frontier
from edgeinfer.ops.parts import Cache, HeadsParts, Span
from edgeinfer.ops.pool import Pool, PoolBlock, PoolFrame
from edgeinfer.ops.rotary import Rotary

LENGTH, HEADS, KV_HEADS, SIZE = 640, 4, 2, 128
BOUND = 1e-3
"""Largest error that passes, over the largest value."""
_MIDDLE = "k8v4"
"""Tried with heads of every size; each format with heads of SIZE."""


def check(repeats: int) -> Iterator[Verdict]:
    """Every format of our own and every head size: a prompt is sealed, then one row and as many as a draft has."""
    ours = [form for form in FORMATS.values() if all(form.widths)]
    for form, size in [*((FORMATS[_MIDDLE], size) for size in HEAD_DIMS), *((form, SIZE) for form in ours)]:
        for rows in (1, MOST_ROWS):
            yield _check(form, size, rows, repeats)


def _check(form: KVFormat, size: int, rows: int, repeats: int) -> Verdict:
    rotary = Rotary(np.zeros(size // 2), interleaved=False)
    parts = HeadsParts(HEADS, KV_HEADS, size, rotary, scale=size**-0.5)
    place = Place(0, 0, form.keys, form.values, form.widths)
    random = np.random.default_rng(size)
    pages = (frontier(LENGTH + rows - 1) - SINKS) // PAGE
    pool = Pool(KV_HEADS * PageFormat(size, *form.widths).nbytes)
    bytes_of_block = PAGE * KV_HEADS * form.row_bytes(size)
    prompt, new = _rows(random, LENGTH, size), _rows(random, rows, size)
    sealed = cache(partial(_stepped, parts, place, PoolFrame, [PoolBlock(pool) for _ in range(pages)], prompt, new))
    twin = _stepped(parts, place, Frame, [HostBlock(bytes_of_block) for _ in range(pages)], prompt, new)
    keys, values = (mx.concatenate([old, fresh]).swapaxes(0, 1).astype(mx.float16)
                    for old, fresh in ((prompt.keys, new.keys), (prompt.values, new.values)))  # fmt: skip

    def theirs() -> mx.array:
        length = LENGTH + rows
        return plain.attention(new.queries, keys, values, length, scale=parts.scale, window=0, softcap=0.0)

    name = f"sealed pages, {form.name}, {size} channels, {rows} rows"
    return verdict(name, lambda: sealed()(), theirs, np.array(twin()), BOUND, repeats)


def _stepped(
    parts: HeadsParts, place: Place, kind: Any, blocks: list[Any], prompt: New, new: New
) -> Callable[[], mx.array]:
    """The step of ``new`` behind a prompt, to be done any number of times."""
    first = kind(SINKS, SINKS, blocks, 0)
    held: Cache = first.step(parts, metal, prompt, Span(0, LENGTH, 0), (), place)[1]
    frame = kind(SINKS, frontier(LENGTH), blocks, len(blocks))
    return lambda: frame.step(parts, metal, new, Span(0, new.queries.shape[0], LENGTH), held, place)[0]


def _rows(random: np.random.Generator, count: int, size: int) -> New:
    def heads(number: int) -> mx.array:
        return mx.array(random.standard_normal((count, number, size)).astype(np.float32))

    return New(heads(HEADS), heads(KV_HEADS), heads(KV_HEADS))
