"""Pages that are sealed, and attention over them beside what is not, against numpy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.cache.codecs.uniform import Uniform, rotate, signs
from edgeinfer.metal_kernels import attention, sealed
from edgeinfer.metal_kernels.sealed import PageFormat
from edgeinfer.ops.paged import SINKS
from tests.metal_kernels.blocks import floats, worst
from tests.metal_kernels.emulator import emulated
from tests.metal_kernels.sealed_blocks import sequence
from tests.native.pages import unpack_page

pytestmark = pytest.mark.usefixtures("metal")
FORMATS = [(64, 8, 4), (80, 3, 3), (96, 5, 4), (112, 4, 4), (128, 4, 3), (192, 6, 4), (256, 8, 8)]
"""Every head size and every format once."""


def test_every_format_is_tried() -> None:
    assert {(key_bits, value_bits) for _, key_bits, value_bits in FORMATS} == sealed.WIDTHS
    assert tuple(size for size, _, _ in FORMATS) == attention.HEAD_DIMS


@pytest.mark.parametrize(("size", "key_bits", "value_bits"), FORMATS)
def test_pages_have_the_bytes_of_the_reference(size: int, key_bits: int, value_bits: int) -> None:
    form, random = PageFormat(size, key_bits, value_bits), np.random.default_rng(size)
    stored = random.standard_normal((2, 2, 400, size)).astype(np.float16)  # keys and values
    stored[:, 0, 140] = 0
    stored[:, 1, 150] = 1e-7
    stored[:, 0, 160] = 60000
    stored[:, 1, 300, ::5] = 300
    stored[:, 0, 310, 3] = np.inf
    with emulated():
        pages = np.array(sealed.seal(*map(mx.array, stored), SINKS, 2, form, mx.array(signs(size))))
    for number in range(2):
        rows = slice(SINKS + number * 128, SINKS + (number + 1) * 128)
        for head in range(2):
            found = unpack_page(pages[number, head], size, (key_bits, value_bits))
            for at, coded in enumerate((Uniform(key_bits, "keys"), Uniform(value_bits, "values"))):
                codes, scales = coded.quantize(stored[at, head, rows].astype(np.float32))
                there = np.isfinite(scales).all(axis=1)
                assert (~there).sum() == (number == 1 and head == 0)
                np.testing.assert_array_equal(found[2 * at][there], codes[there])
                np.testing.assert_array_equal(found[2 * at + 1][there], scales[there])
                np.testing.assert_array_equal(np.isfinite(found[2 * at + 1]), np.isfinite(scales))


@pytest.mark.parametrize("size", [16 * 5, 128, 192])
def test_queries_are_rotated_as_keys_are(size: int) -> None:
    x = np.random.default_rng(size).standard_normal((3, 2, size)).astype(np.float32)
    with emulated():
        y = np.array(sealed.rotate(mx.array(x), mx.array(signs(size))))
    np.testing.assert_array_equal(y.reshape(-1, size), rotate(x.reshape(-1, size)))


FEW = [
    # head size, key and value bits, rows, heads, kv_heads, tokens, softcap
    (64, 8, 4, 1, 4, 2, 640, 0.0),
    (80, 3, 3, 5, 2, 1, 770, 4.0),
    (96, 5, 4, 2, 4, 4, 512, 0.0),
    (112, 4, 4, 16, 3, 3, 1030, 0.0),
    (128, 4, 3, 3, 8, 1, 900, 3.0),
    (192, 6, 4, 1, 2, 1, 640, 0.0),
    (256, 8, 8, 2, 2, 1, 512, 0.0),
]
MANY = [
    (64, 8, 4, 33, 4, 2, 780, 0.0),
    (80, 3, 3, 17, 3, 1, 640, 4.0),
    (96, 5, 4, 140, 1, 1, 800, 0.0),
    (112, 4, 4, 20, 2, 2, 530, 0.0),
    (128, 4, 3, 24, 2, 1, 660, 0.0),
    (192, 6, 4, 18, 2, 1, 650, 3.0),
    (256, 8, 8, 17, 1, 1, 650, 0.0),
]


@pytest.mark.parametrize(("size", "key_bits", "value_bits", "rows", "heads", "kv_heads", "tokens", "cap"), FEW + MANY)
def test_attention_over_sealed_pages(size, key_bits, value_bits, rows, heads, kv_heads, tokens, cap) -> None:
    form, position, queries = PageFormat(size, key_bits, value_bits), tokens - rows, floats((rows, heads, size))
    cached = sequence(form, kv_heads, tokens, position)
    with emulated():
        y = sealed.attend(queries, position, cached.held, form, scale=size**-0.5, softcap=cap)
    assert worst(y, cached.expected(queries, position, scale=size**-0.5, softcap=cap)) < 1e-5


def test_many_rows_take_no_more_scratch_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries twice and two parts, of float32; the same bits in one part or in several."""
    form, queries = PageFormat(64, 8, 4), floats((40, 2, 64))
    cached = sequence(form, 1, 600, 560)
    with emulated():
        whole = np.array(sealed.attend(queries, 560, cached.held, form, scale=0.125))
    monkeypatch.setattr(sealed, "MOST_SCRATCH", 4 * 4 * 2 * 64 * 24)
    with emulated() as metal:
        parts = np.array(sealed.attend(queries, 560, cached.held, form, scale=0.125))
    np.testing.assert_array_equal(parts, whole)
    written = [report.written["part"] for report in metal.reports if "part" in report.written]
    assert [size for size in written if size] == [2 * 4 * 2 * 64 * 24, 2 * 4 * 2 * 64 * 16]


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    """The frontier of the last rows lies behind that of the first ones, which therefore see more in float16."""
    form, rows, tokens = PageFormat(64, 8, 4), 7, 771
    queries, together = floats((rows, 4, 64)), sequence(form, 2, tokens, tokens - rows)
    with emulated():
        found = np.array(sealed.attend(queries, tokens - rows, together.held, form, scale=0.125))
        for row in (0, 2, 3, 6):
            position = tokens - rows + row
            alone = sequence(form, 2, tokens, position)
            one = sealed.attend(queries[row : row + 1], position, alone.held, form, scale=0.125)
            np.testing.assert_array_equal(np.array(one)[0].view(np.uint32), found[row].view(np.uint32))


@pytest.mark.parametrize("size", [64, 192])
def test_a_row_has_the_same_bits_where_nothing_is_sealed_yet(size: int) -> None:
    """As the kernel for float16 alone gives it, in splits of a page."""
    form, queries = PageFormat(size, 8, 4), floats((2, 2, size))
    cached = sequence(form, 1, 512, 510)  # the last row is the first that sees a sealed page
    with emulated():
        both = np.array(sealed.attend(queries, 510, cached.held, form, scale=0.125))
        keys, values = (mx.array(stored) for stored in cached.plain)
        alone = attention.attend(queries[:1], keys, values, 511, scale=0.125, split=attention.PAGE)
    np.testing.assert_array_equal(np.array(alone)[0].view(np.uint32), both[0].view(np.uint32))


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(("size", "key_bits", "value_bits"), [(64, 8, 4), (128, 6, 4), (128, 4, 3)])
def test_codes_are_read_once_for_all_queries(size: int, key_bits: int, value_bits: int, rows: int) -> None:
    form = PageFormat(size, key_bits, value_bits)
    cached = sequence(form, 2, 784, 784 - rows)
    with emulated() as metal:
        sealed.attend(floats((rows, 8, size)), 784 - rows, cached.held, form, scale=0.125)
    read = metal.reports[1].read
    assert read["packed"] == cached.held.table.size * 2 * form.nbytes
    assert read["k"] == read["v"] == 2 * size * 2 * (SINKS + 784 - cached.held.base)


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize("rows", [3, 20])
def test_no_bit_depends_on_the_schedule(order: str, rows: int) -> None:
    form, queries, cached = PageFormat(64, 8, 4), floats((rows, 4, 64)), sequence(PageFormat(64, 8, 4), 2, 650, 630)
    keys, values = cached.held.keys, cached.held.values

    def both() -> tuple[np.ndarray, np.ndarray]:
        pages = sealed.seal(keys, values, 0, 1, form, cached.held.signs)
        return np.array(pages), np.array(sealed.attend(queries, 650 - rows, cached.held, form, scale=0.125))

    with emulated():
        forward = both()
    with emulated(order=order):
        again = both()
    for one, other in zip(forward, again, strict=True):
        np.testing.assert_array_equal(one, other)
