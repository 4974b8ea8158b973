"""What each kernel reads and computes, counted by the emulator. ``python -m tests.metal_kernels.traffic`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx

from edgeinfer.metal_kernels import attention, products
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import floats, kv_cache, matrix
from tests.metal_kernels.emulator import Report, emulated

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
        for count in (32, 64, 128):
            report = _reports(lambda w=w, count=count: products.qmm(floats((count, COLUMNS)), w.array, w.codec))
            yield _line("qmm", f"{codec}, M = {count}", report, report.read["w"], w.blocks.nbytes, w.weights.size)
    w = matrix(CODECS["q4_k"], OUTPUTS, COLUMNS)
    for count in (1, 8):
        x, gain = floats((count, COLUMNS)), products.Extras(floats((COLUMNS,)), 1e-5)
        report = _reports(lambda x=x, gain=gain: products.qmv_gated(x, w.array, w.array, w.codec, "silu", gain))
        read = report.read["w"] + report.read["up"]
        yield _line("qmv_gated", f"q4_k, norm, M = {count}", report, read, 2 * w.blocks.nbytes, 2 * w.weights.size)
    stacked = w.array.reshape(4, OUTPUTS // 4, -1)
    for name, count in (("qmv_experts", 8), ("qmm_experts", 32)):
        chosen = mx.array([expert for expert in range(4) for _ in range(count // 4)], mx.int32)
        report = _reports(
            lambda count=count, chosen=chosen: products.multiply_experts(
                floats((count, COLUMNS)), stacked, w.codec, chosen
            )
        )
        yield _line(name, f"q4_k, 4 experts, M = {count}", report, report.read["w"], w.blocks.nbytes, w.weights.size)
    every = mx.arange(OUTPUTS, dtype=mx.int32)
    report = _reports(lambda: products.rows(every, w.array, w.codec))
    yield _line("rows", "q4_k", report, report.read["w"], w.blocks.nbytes, w.weights.size)
    keys, values = kv_cache(2, LENGTH, SIZE, 2), kv_cache(2, LENGTH, SIZE, 3)
    for count in (1, 8, 16):
        queries = floats((count, 8, SIZE))
        report = _reports(lambda queries=queries: attention.attend(queries, keys, values, LENGTH, scale=0.125))
        read = report.read["k"] + report.read["v"]
        yield _line("attention_part", f"4 queries a KV head, L = {count}", report, read, 2 * keys.nbytes, 2 * keys.size)
    for count in (32, 64):
        queries = floats((count, 8, SIZE))
        report = _reports(lambda queries=queries: attention.attend_rows(queries, keys, values, LENGTH, scale=0.125))
        read = report.read["k"] + report.read["v"]
        yield _line("attention_rows", f"4 queries a KV head, L = {count}", report, read, 2 * keys.nbytes, 2 * keys.size)


if __name__ == "__main__":
    print("\n".join(rows()))
