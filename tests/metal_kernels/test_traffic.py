"""What each kernel reads and computes, counted by the emulator: the table of ``metal_kernels/README.md``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from edgeinfer.metal_kernels import attention, products
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import floats, kv_cache, matrix
from tests.metal_kernels.emulator import Report, emulated

README = Path(__file__).parents[2] / "metal_kernels" / "README.md"
HEAD = (
    "| kernel | case | bytes of weights or keys and values read, over their size | products a weight or element "
    "| threadgroup memory | bytes read of it a weight or element |"
)
OUTPUTS, COLUMNS, LENGTH, SIZE = 32, 1024, 512, 64


def _reports(call: Callable[[], mx.array]) -> Report:
    with emulated() as metal:
        call()
    return metal.reports[0]


def _line(name: str, case: str, report: Report, read: int, size: int, elements: int) -> str:
    return (
        f"| {name} | {case} | {read / size:.2f} | {report.products / elements:.2f} | {report.threadgroup_bytes} "
        f"| {report.threadgroup_read / elements:.2f} |"
    )


def rows() -> Iterator[str]:
    """The table, line by line."""
    yield HEAD
    yield "|---|---|---|---|---|---|"
    for codec in ("q4_k", "q6_k", "q8_0"):
        w = matrix(CODECS[codec], OUTPUTS, COLUMNS)
        for count in (1, 4, 8, 16):
            report = _reports(lambda w=w, count=count: products.qmv(floats((count, COLUMNS)), w.array, w.codec))
            yield _line("qmv", f"{codec}, M = {count}", report, report.read["w"], w.blocks.nbytes, w.weights.size)
        for count in (32, 64):
            report = _reports(lambda w=w, count=count: products.qmm(floats((count, COLUMNS)), w.array, w.codec))
            yield _line("qmm", f"{codec}, M = {count}", report, report.read["w"], w.blocks.nbytes, w.weights.size)
    w = matrix(CODECS["q4_k"], OUTPUTS, COLUMNS)
    for count in (1, 8):
        x, gain = floats((count, COLUMNS)), products.Extras(floats((COLUMNS,)), 1e-5)
        report = _reports(lambda x=x, gain=gain: products.qmv_gated(x, w.array, w.array, w.codec, "silu", gain))
        read = report.read["w"] + report.read["up"]
        yield _line("qmv_gated", f"q4_k, norm, M = {count}", report, read, 2 * w.blocks.nbytes, 2 * w.weights.size)
    every = mx.arange(OUTPUTS, dtype=mx.int32)
    report = _reports(lambda: products.rows(every, w.array, w.codec))
    yield _line("rows", "q4_k", report, report.read["w"], w.blocks.nbytes, w.weights.size)
    keys, values = kv_cache(2, LENGTH, SIZE, 2), kv_cache(2, LENGTH, SIZE, 3)
    for count in (1, 8, 16):
        queries = floats((count, 8, SIZE))
        report = _reports(lambda queries=queries: attention.attend(queries, keys, values, LENGTH, scale=0.125))
        read = report.read["k"] + report.read["v"]
        yield _line("attention_part", f"4 queries a KV head, L = {count}", report, read, 2 * keys.nbytes, 2 * keys.size)


@pytest.mark.usefixtures("emulator_only")
def test_the_table_of_the_readme_is_what_the_emulator_counts() -> None:
    table = "\n".join(rows())
    assert table in README.read_text(), f"the table is now:\n{table}"
