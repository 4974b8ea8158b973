"""Faults planted in the kernels: each must be caught, by a check or by wrong numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.metal_kernels import products
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import floats, matrix, wide, worst
from tests.metal_kernels.emulator import CompileError, KernelFault, emulated

pytestmark = pytest.mark.usefixtures("emulator_only")
BARRIER = "metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);"
SIMD_BARRIER = "metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);"

QMV = [
    ("first barrier removed", f"{SIMD_BARRIER}\n      if (lane", "if (lane", "uninitialised"),
    ("second barrier removed", f"rows, lane);\n      {SIMD_BARRIER}", "rows, lane);", "race"),
    ("barrier of the wrong memory", f"{SIMD_BARRIER}\n      if", f"{SIMD_BARRIER.replace('mem_threadgroup', 'mem_none')}\n      if", "race"),
    ("row guard off by one", "all_outputs - output, 0", "all_outputs - output + 1, 0", "bounds"),
    ("row guard missing in the write", "if (m < rows && n < present)", "if (m < rows)", "race"),
    ("x guard missing", "metal::min(all_rows - row, ROWS)", "ROWS", "bounds"),
    ("one byte too many", "halves; i += 32", "halves + 1; i += 32", "race"),
    ("sum of half the lanes", "const float sum = metal::simd_sum(product.sum[m][n]);",
     "float sum = 0; if (lane < 16) sum = metal::simd_sum(product.sum[m][n]);", "divergent-simd"),
    ("every lane writes", "if (lane == (m * OUTPUTS + n) % 32) y", "y", "race"),
    ("wrong address space", "const device ushort* source = (const device", "const threadgroup ushort* source = (const device", "compile"),
    ("offset forgotten", "Codec::has_offset ? metal::fma(chunk.offset, total, scaled) : scaled", "scaled", "numbers"),
    ("sum not cleared", "sum[m][n] = 0;", "if (m) sum[m][n] = 0;", "numbers"),
    ("nibbles swapped", ">> (i % run / 32 * bits)", ">> (4 - i % run / 32 * bits)", "numbers"),
    ("group of another chunk", "scale = Codec::scale(block, i / Codec::group)", "scale = Codec::scale(block, i / 64)", "numbers"),
]  # fmt: skip
QMV_TAIL = [
    ("end of a row not seen", "if (lane * 8 < weights)", "if (lane * 8 <= weights)", "bounds"),
    ("a whole step at the end", "metal::min(columns - start, int(Stage<Codec>::weights))", "Stage<Codec>::weights", "bounds"),
]  # fmt: skip
QMM = [
    ("barrier after the load removed", f"{BARRIER}\n  quarter", "  quarter", "race"),
    ("barrier after the product removed", f"output_part);\n  {BARRIER}", "output_part);", "race"),
    ("barrier before the write removed", f"{BARRIER}\nfor (int at", "for (int at", "race"),
    ("only a simdgroup barrier", f"{BARRIER}\n  quarter", f"{SIMD_BARRIER}\n  quarter", "uninitialised"),
    ("guard of rows missing", "const bool there = m < rows && ", "const bool there = ", "bounds"),
    ("guard of columns missing", "m < rows && k + first < columns", "m < rows", "bounds"),
    ("guard of the matrix missing", "n < outputs && k + first < columns", "k + first < columns", "bounds"),
    ("guard of the write missing", "if (m < rows && n < outputs)", "if (n < outputs)", "bounds"),
    ("one simdgroup leaves early", "quarter.clear();", "quarter.clear(); if (simdgroup == 3) return;", "divergent-barrier"),
    ("quarters in one place", "const int output_part = simdgroup % 2 * 16", "const int output_part = 0", "race"),
    ("fragment from the wrong row", "left + i * 8 * stride + k", "left + i * 4 * stride + k", "numbers"),
    ("tile too small", "threadgroup float right[qmm::tile * qmm::stride]", "threadgroup float right[qmm::tile * qmm::tile]", "bounds"),
]  # fmt: skip
ROWS = [
    ("chunk too far", "weights.unpack(w + ulong(tokens[token]) * w_shape[1], chunk)",
     "weights.unpack(w + ulong(tokens[token]) * w_shape[1], chunk + 1)", "bounds"),
    ("token too far", "tokens[token])", "tokens[token + 8])", "bounds"),
    ("signed past the end", "ulong(tokens[token])", "ulong(-tokens[token])", "bounds"),
    ("written twice", "y[ulong(token) * columns", "y[ulong(0) * columns", "race"),
    ("one weight short", "for (int j = 0; j < 8; j++) y[", "for (int j = 0; j < 7; j++) y[", "unwritten"),
    ("array overrun", "for (int j = 0; j < 8; j++) y[", "for (int j = 0; j < 9; j++) y[", "array-index"),
    ("nibbles swapped", ">> (i % run / 32 * bits)", ">> (4 - i % run / 32 * bits)", "numbers"),
    ("six-bit scales mixed up", "s[g - 4] >> 6 << 4; }", "s[g - 4] >> 6 << 3; }", "numbers"),
]  # fmt: skip


KERNELS = {
    "qmv": ("q4_k", 512, products.qmv, QMV),
    "qmv at the end of a row": ("q4_1", 352, products.qmv, QMV_TAIL),
    "qmm": ("f16", 360, products.qmm, QMM),
    "rows": ("q4_k", 512, None, ROWS),
}


def _verdict(edit: tuple[str, str], kernel: str) -> str:
    codec, columns, multiply, _ = KERNELS[kernel]
    w, tokens = matrix(CODECS[codec], 13, columns), [12, 0, 5]
    x = floats((35 if kernel == "qmm" else 3, columns))
    try:
        with emulated(edit=edit):
            if multiply is None:
                return _numbers(products.rows(mx.array(tokens, mx.int32), w.array, w.codec), w.weights[tokens])
            return _numbers(multiply(x, w.array, w.codec), wide(x) @ w.weights.T)
    except KernelFault as fault:
        return fault.kind
    except CompileError:
        return "compile"


def _numbers(found: mx.array, expected: np.ndarray) -> str:
    return "numbers" if worst(found, expected) > 1e-6 else "nothing"


@pytest.mark.parametrize(
    ("kernel", "before", "after", "kind"),
    [
        pytest.param(kernel, before, after, kind, id=f"{kernel}: {name}")
        for kernel, (_, _, _, faults) in KERNELS.items()
        for name, before, after, kind in faults
    ],
)
def test_a_planted_fault_is_caught(kernel: str, before: str, after: str, kind: str) -> None:
    assert _verdict((before, after), kernel) == kind
