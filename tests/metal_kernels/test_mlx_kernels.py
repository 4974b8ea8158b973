"""The emulator itself, held against kernels that are known to be right: two of MLX's own, as the wheel ships them.

Their text is taken from the headers of the installed mlx. Function constants become plain ones.
"""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_kernels.blocks import attention_in_float64, floats, wide, worst
from tests.metal_kernels.emulator import KernelFault, emulated

pytestmark = pytest.mark.usefixtures("emulator_only")

HEADERS = Path(mx.__file__).parent / "include" / "mlx" / "backend" / "metal" / "kernels"
PRELUDE = """
#include <metal_stdlib>
using namespace metal;
#define METAL_FUNC inline __attribute__((always_inline))
typedef unsigned long size_t;
template <typename T> METAL_FUNC T select(T no, T yes, bool which) { return which ? yes : no; }
template <typename T> struct Limits { static constexpr constant T finite_min = T(-3.4028234e38f); };
"""
BOUNDS = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 5e-3}


def _taken(file: str, start: str, end: str) -> str:
    """The lines of one of MLX's headers from the one that holds ``start`` to before the one that holds ``end``."""
    lines = (HEADERS / file).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if start in line)
    last = next(i for i, line in enumerate(lines) if end in line and i > first)
    while not lines[last].startswith("template"):
        last -= 1
    return "\n".join(lines[first:last])


def _constant(found: re.Match[str]) -> str:
    return f"constant {found[1]} {found[2]} = {'true' if found[2] == 'do_causal' else '0'};"


def _qmv_header() -> str:
    text = _taken("quantized.h", "#define MLX_MTL_CONST", "struct QuantizedBlockLoader")
    return PRELUDE + text + "\n" + _whole("quantized.h", "METAL_FUNC void qmv_fast_impl(")


def _whole(file: str, name: str) -> str:
    """A function template of one of MLX's headers."""
    lines = (HEADERS / file).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if name in line)
    first = max(i for i in range(at + 1) if lines[i].startswith("template"))
    return "\n".join(lines[first : lines.index("}", at) + 1])


def _qmv(x: mx.array, bits: int, edit: tuple[str, str] | None = None) -> tuple[mx.array, np.ndarray]:
    outputs, columns, dtype = 16, 1024, x.dtype
    w, scales, biases = mx.quantize(floats((outputs, columns), seed=bits), 64, bits)
    scales, biases = scales.astype(dtype), biases.astype(dtype)
    exact = mx.dequantize(w, scales.astype(mx.float32), biases.astype(mx.float32), 64, bits)
    names = ["w", "scales", "biases", "x", "columns", "outputs"]
    body = (
        "qmv_fast_impl<T, 64, BITS>(w, scales, biases, x, y, columns, outputs, threadgroup_position_in_grid, "
        "simdgroup_index_in_threadgroup, thread_index_in_simdgroup);"
    )
    with emulated(strict=False, edit=edit):
        kernel = mx.fast.metal_kernel("mlx_qmv", names, ["y"], body, _qmv_header())
        (y,) = kernel(
            inputs=[w, scales, biases, x, mx.array(columns), mx.array(outputs)],
            template=[("T", dtype), ("BITS", bits)],
            grid=(32 * len(x), 2 * outputs // 8, 1),
            threadgroup=(32, 2, 1),
            output_shapes=[(len(x), outputs)],
            output_dtypes=[dtype],
        )
    return y, wide(x) @ wide(exact).T


def _attention(dtype: mx.Dtype, edit: tuple[str, str] | None = None) -> tuple[mx.array, np.ndarray]:
    heads, kv_heads, length, size, rows = 4, 2, 77, 64, 3
    queries, keys, values = (
        floats(shape, dtype, seed)
        for seed, shape in enumerate([(heads, rows, size), (kv_heads, length, size), (kv_heads, length, size)])
    )
    text = _taken("sdpa_vector.h", "constant bool has_mask", "[[kernel]] void sdpa_vector_2pass_1(")
    text = re.sub(r"constant (\w+) (\w+) \[\[function_constant\(\d+\)\]\];", _constant, text)
    text = text.replace("[[kernel]] void", "METAL_FUNC void")
    names = ["q", "k", "v", "group", "length", "head_stride", "row_stride", "scale"]
    body = (
        "sdpa_vector<T, SIZE>(q, k, v, y, group, length, head_stride, row_stride, head_stride, row_stride, scale, "
        "(const device bool*)q, q, group, group, group, q, group, threadgroup_position_in_grid, threadgroups_per_grid, "
        "simdgroup_index_in_threadgroup, thread_index_in_simdgroup);"
    )
    with emulated(strict=False, edit=edit):
        kernel = mx.fast.metal_kernel("mlx_sdpa", names, ["y"], body, PRELUDE + text)
        (y,) = kernel(
            inputs=[
                queries, keys, values, mx.array(heads // kv_heads), mx.array(length),
                mx.array(length * size, mx.uint64), mx.array(size, mx.uint64), mx.array(0.125, mx.float32),
            ],
            template=[("T", dtype), ("SIZE", size)],
            grid=(1024 * heads, rows, 1),
            threadgroup=(1024, 1, 1),
            output_shapes=[(heads, rows, size)],
            output_dtypes=[dtype],
        )  # fmt: skip
    by_row = mx.transpose(y, (1, 0, 2)).reshape(rows, heads * size)
    return by_row, attention_in_float64(mx.transpose(queries, (1, 0, 2)), keys, values, length, scale=0.125)


@pytest.mark.parametrize(
    ("bits", "dtype"), [*((bits, mx.float32) for bits in (2, 3, 4, 6, 8)), (4, mx.float16), (4, mx.bfloat16)]
)
def test_the_quantized_product_of_mlx_is_right_and_without_a_finding(bits: int, dtype: mx.Dtype) -> None:
    assert worst(*_qmv(floats((2, 1024), dtype), bits)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_the_attention_of_mlx_is_right_and_without_a_finding(dtype: mx.Dtype) -> None:
    assert worst(*_attention(dtype)) < BOUNDS[dtype]


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (f"{BARRIER}\n  max_score = max_scores", "max_score = max_scores", "uninitialised"),
        (f"{BARRIER}\n    o[i] = simd_sum(outputs", "o[i] = simd_sum(outputs", "uninitialised"),
        (f": (o[i] / sum_exp_score);\n    {BARRIER}", ": (o[i] / sum_exp_score);", "race"),
        ("simd_gid * k_seq_stride +", "(simd_gid + 1) * k_seq_stride +", "bounds"),
        ("if (simd_lid == 0) {\n    for", "{\n    for", "race"),
    ],
)
def test_a_fault_in_the_attention_of_mlx_is_found(before: str, after: str, kind: str) -> None:
    with pytest.raises(KernelFault) as found:
        _attention(mx.float32, (before, after))
    assert found.value.kind == kind
