"""What each kernel reads and computes, counted by the emulator. ``python -m tests.metal_kernels.traffic`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx

from edgeinfer.metal_kernels import attention, products, sealed
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import floats, kv_cache, matrix
from tests.metal_kernels.emulator import Report, emulated
from tests.metal_kernels.sealed_blocks import sequence

HEAD = (
    "| kernel | case | bytes of weights or keys and values read, over their size | products a weight or element "
    "| threadgroup memory | bytes read of it a weight or element |"
)
OUTPUTS, COLUMNS, LENGTH, SIZE = 32, 1024, 512, 64


def _reports(call: Callable[[], mx.array]) -> Report:
    return _all_reports(call)[0]


def _all_reports(call: Callable[[], mx.array]) -> list[Report]:
    with emulated() as metal:
        call()
    return metal.reports


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
    parts = [w.array[: OUTPUTS // 2], w.array[OUTPUTS // 2 : 3 * OUTPUTS // 4], w.array[3 * OUTPUTS // 4 :]]
    for count in (1, 8):
        report = _reports(lambda n=count: products.qmv_joined(floats((n, COLUMNS)), parts, w.codec, w.codec))
        read = sum(report.read[given] for given in ("w", "second", "third"))
        yield _line("qmv_joined", f"q4_k, 3 matrices, M = {count}", report, read, w.blocks.nbytes, w.weights.size)
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
    yield from _sealed_rows()


def _sealed_rows() -> Iterator[str]:
    """Of codes alone: 768 tokens - 4, 5 or 6 pages - of 1024, of which the others lie in float16."""
    for size, bits in ((64, (8, 4)), (128, (6, 4)), (128, (4, 3))):
        form = sealed.PageFormat(size, *bits)
        name = f"k{bits[0]}v{bits[1]}, {size} channels"
        for count in (1, 8, 16, 64):
            held = sequence(form, 2, 1024, 1024 - count).held
            queries = floats((count, 8, size))
            made = _all_reports(
                lambda q=queries, h=held, f=form: sealed.attend(q, 1024 - q.shape[0], h, f, scale=0.125)
            )
            report, whole = made[1], held.table.size * 2 * form.nbytes
            elements = 2 * 2 * 1024 * size
            kernel = "sealed_part" if count <= attention.MOST_ROWS else "sealed_rows"
            case = f"{name}, 4 queries a KV head, L = {count}"
            yield _line(kernel, case, report, report.read["packed"], whole, elements)
        if bits == (8, 4):
            for report, kernel in zip(made[::2], ("rotate", "sealed_merge"), strict=True):
                size_of = queries.nbytes if kernel == "rotate" else 2 * queries.nbytes
                read = report.read["x" if kernel == "rotate" else "part"]
                yield _line(kernel, "64 rows of 8 heads, 64 channels", report, read, size_of, queries.size)
        keys, values = kv_cache(2, 128, size, 2), kv_cache(2, 128, size, 3)
        report = _reports(lambda k=keys, v=values, f=form, h=held: sealed.seal(k, v, 0, 1, f, h.signs))
        yield _line(
            "seal", f"{name}, a page", report, report.read["k"] + report.read["v"], 2 * keys.nbytes, 2 * keys.size
        )


if __name__ == "__main__":
    print("\n".join(rows()))
