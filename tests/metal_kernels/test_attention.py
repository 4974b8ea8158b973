"""Attention over pages against numpy in float64: lengths below one tile, odd ones, more than one split."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.metal_kernels import attention
from tests.metal_kernels.blocks import attention_in_float64, floats, kv_cache, worst
from tests.metal_kernels.emulator import emulated

pytestmark = pytest.mark.usefixtures("metal")


CASES = [
    # rows, heads, kv_heads, size, length, options
    (1, 4, 2, 64, 5, {}),
    (1, 8, 2, 80, 300, {"window": 20}),
    (3, 4, 4, 96, 33, {"softcap": 5.0}),
    (2, 6, 2, 112, 260, {"window": 9, "softcap": 3.0}),
    (16, 4, 2, 64, 270, {"window": 100}),
    (5, 8, 1, 128, 129, {}),
    (1, 2, 1, 192, 64, {}),
    (2, 2, 1, 256, 40, {"window": 64}),
    (1, 1, 1, 64, 1, {}),
    (16, 3, 3, 64, 16, {}),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "heads", "kv_heads", "size", "length", "options"), CASES)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention(rows, heads, kv_heads, size, length, options, with_sinks) -> None:
    queries = floats((rows, heads, size), seed=length)
    keys, values = kv_cache(kv_heads, length, size, 2), kv_cache(kv_heads, length, size, 3)
    sinks = floats((heads,), seed=4) if with_sinks else None
    with emulated():
        y = attention.attend(queries, keys, values, length, scale=size**-0.5, sinks=sinks, **options)
    assert (
        worst(y, attention_in_float64(queries, keys, values, length, scale=size**-0.5, sinks=sinks, **options)) < 1e-5
    )


MANY = [
    (17, 4, 2, 64, 70, {}),
    (33, 3, 1, 80, 150, {"window": 40, "softcap": 4.0}),
    (40, 2, 2, 96, 40, {}),
    (8, 5, 1, 112, 129, {"window": 30}),
    (20, 4, 4, 128, 200, {"softcap": 5.0}),
    (9, 2, 1, 192, 50, {}),
    (9, 2, 1, 256, 50, {"window": 7}),
]


@pytest.mark.parametrize(("rows", "heads", "kv_heads", "size", "length", "options"), MANY)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_of_many_rows(rows, heads, kv_heads, size, length, options, with_sinks) -> None:
    queries = floats((rows, heads, size), seed=length)
    keys, values = kv_cache(kv_heads, length, size, 2), kv_cache(kv_heads, length, size, 3)
    given = {"scale": size**-0.5, "sinks": floats((heads,), seed=4) if with_sinks else None, **options}
    with emulated():
        y = attention.attend_rows(queries, keys, values, length, **given)
    assert worst(y, attention_in_float64(queries, keys, values, length, **given)) < 1e-5


@pytest.mark.parametrize("attend", [attention.attend, attention.attend_rows])
def test_pages_may_lie_anywhere(attend) -> None:
    queries, keys, values = floats((2, 4, 64)), kv_cache(2, 256, 64, 2), kv_cache(2, 256, 64, 3)
    order = np.random.default_rng(5).permutation(7)[:4]
    table = mx.array(order.reshape(2, 2).astype(np.int32))

    def scattered(stored: mx.array) -> mx.array:
        pages = np.full((7, attention.PAGE, 64), np.nan, np.float16)
        pages[order] = np.array(stored).reshape(4, attention.PAGE, 64)
        return mx.array(pages)

    with emulated():
        y = attend(queries, scattered(keys), scattered(values), 200, scale=0.1, table=table)
    assert worst(y, attention_in_float64(queries, keys, values, 200, scale=0.1)) < 1e-5


@pytest.mark.parametrize("window", [0, 30])
def test_a_row_has_the_same_bits_alone_and_among_others(window: int) -> None:
    length, rows = 265, 7
    queries, keys, values = floats((rows, 4, 64)), kv_cache(2, length, 64, 2), kv_cache(2, length, 64, 3)
    with emulated():
        together = np.array(attention.attend(queries, keys, values, length, scale=0.125, window=window))
        for row in (0, 3, 6):
            seen = length - rows + 1 + row
            alone = attention.attend(queries[row : row + 1], keys, values, seen, scale=0.125, window=window)
            np.testing.assert_array_equal(np.array(alone)[0].view(np.uint32), together[row].view(np.uint32))


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("rows", [1, 16])
def test_keys_and_values_are_read_once_for_all_queries(rows: int) -> None:
    keys, values = kv_cache(2, 256, 64, 2), kv_cache(2, 256, 64, 3)
    with emulated() as metal:
        reports = metal.reports
        attention.attend(floats((rows, 16, 64)), keys, values, 256, scale=0.125)
    assert reports[0].read["k"] == keys.nbytes
    assert reports[0].read["v"] == values.nbytes


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("attend", [attention.attend, attention.attend_rows])
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_no_bit_depends_on_the_schedule(order: str, attend) -> None:
    queries, keys, values = floats((3, 8, 64)), kv_cache(2, 270, 64, 2), kv_cache(2, 270, 64, 3)
    with emulated():
        forward = np.array(attend(queries, keys, values, 270, scale=0.125))
    with emulated(order=order):
        again = np.array(attend(queries, keys, values, 270, scale=0.125))
    np.testing.assert_array_equal(again, forward)
