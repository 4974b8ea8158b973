"""Faults planted in the kernels: each must be caught, by a check or by wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.cache.codecs.uniform import Uniform, signs
from edgeinfer.cache.codecs.uniform import rotate as rotated
from edgeinfer.metal_kernels import attention, products, sealed
from edgeinfer.ops.paged import SINKS
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels import faults
from tests.metal_kernels.blocks import attention_in_float64, floats, gated, kv_cache, matrix, rms_norm, wide, worst
from tests.metal_kernels.emulator import CompileError, KernelFault, emulated
from tests.metal_kernels.sealed_blocks import Sequence, sequence
from tests.native.pages import restored

pytestmark = pytest.mark.usefixtures("emulator_only")


PRODUCTS = {
    "qmv": ("q4_k", 512, products.qmv, faults.QMV),
    "qmv at the end of a row": ("q4_1", 352, products.qmv, faults.QMV_TAIL),
    "qmm": ("f16", 360, products.qmm, faults.QMM),
    "rows": ("q4_k", 512, products.rows, faults.ROWS),
    "rows at the end of a row": ("q4_1", 352, products.rows, faults.ROWS_TAIL),
}


def _product(kernel: str) -> Callable[[], tuple[mx.array, np.ndarray]]:
    codec, columns, call, _ = PRODUCTS[kernel]
    w, tokens = matrix(CODECS[codec], 13, columns), [12, 0, 5]
    x = floats((35 if kernel == "qmm" else 3, columns))
    if call is products.rows:
        return lambda: (call(mx.array(tokens, mx.int32), w.array, w.codec), w.weights[tokens])
    return lambda: (call(x, w.array, w.codec), wide(x) @ w.weights.T)


def _experts(rows: int) -> Callable[[], tuple[mx.array, np.ndarray]]:
    w, x, chosen = matrix(CODECS["f16"], 3 * 13, 64), floats((rows, 64)), [0] * (rows // 2) + [2] * (rows - rows // 2)
    stacked, weights = w.array.reshape(3, 13, -1), w.weights.reshape(3, 13, 64)[chosen]
    expected = np.einsum("mk,mnk->mn", wide(x), weights.astype(np.float64))
    return lambda: (products.multiply_experts(x, stacked, w.codec, mx.array(chosen, mx.int32)), expected)


def _fused() -> tuple[mx.array, np.ndarray]:
    w, x, residual = matrix(CODECS["q4_k"], 13, 512), floats((3, 512)), floats((3, 13), seed=2)
    gain, bias = floats((512,), seed=3), floats((13,), seed=4)
    y = products.qmv(x, w.array, w.codec, products.Extras(gain, 1e-5, bias, residual))
    return y, wide(residual) + wide(bias) + rms_norm(x, gain, 1e-5) @ w.weights.T


def _joined() -> tuple[mx.array, np.ndarray]:
    matrices = [matrix(CODECS["q4_k"], 13, 512), matrix(CODECS["q4_k"], 6, 512, 8), matrix(CODECS["q6_k"], 7, 512, 9)]
    x = floats((3, 512))
    y = products.qmv_joined(x, [each.array for each in matrices], CODECS["q4_k"], CODECS["q6_k"])
    return y, wide(x) @ np.concatenate([each.weights for each in matrices]).T


def _gated() -> tuple[mx.array, np.ndarray]:
    gate, up, x = matrix(CODECS["q4_k"], 13, 512), matrix(CODECS["q4_k"], 13, 512, seed=9), floats((3, 512))
    return products.qmv_gated(x, gate.array, up.array, gate.codec, "silu"), gated(gate, up, wide(x), "silu")


def _attention() -> tuple[mx.array, np.ndarray]:
    queries, sinks, length = floats((3, 8, 80)), floats((8,), seed=4), 267
    keys, values = kv_cache(2, length, 80, 2), kv_cache(2, length, 80, 3)
    y = attention.attend(queries, keys, values, length, scale=0.2, window=265, sinks=sinks)
    return y, attention_in_float64(queries, keys, values, length, scale=0.2, window=265, sinks=sinks)


def _attention_rows() -> tuple[mx.array, np.ndarray]:
    queries, sinks, length = floats((17, 3, 80)), floats((3,), seed=4), 75
    keys, values = kv_cache(1, length, 80, 2), kv_cache(1, length, 80, 3)
    y = attention.attend_rows(queries, keys, values, length, scale=0.2, window=34, sinks=sinks)
    return y, attention_in_float64(queries, keys, values, length, scale=0.2, window=34, sinks=sinks)


FORM = sealed.PageFormat(80, 5, 4)


def _seal() -> tuple[mx.array, np.ndarray]:
    """Two pages of two heads, opened again."""
    keys, values = kv_cache(2, 384, 80, 2), kv_cache(2, 384, 80, 3)
    pages = np.array(sealed.seal(keys, values, SINKS, 2, FORM, mx.array(signs(80))))
    found = [restored(pages[number, head], 80, (5, 4)) for number in range(2) for head in range(2)]
    expected = [
        [
            coded.restore(*coded.quantize(np.array(stored[head, rows], np.float32)))
            for coded, stored in ((Uniform(5, "keys"), keys), (Uniform(4, "values"), values))
        ]
        for rows in (slice(128, 256), slice(256, 384))
        for head in range(2)
    ]
    return mx.array(np.array(found)), np.array(expected, np.float64)


def _rotate() -> tuple[mx.array, np.ndarray]:
    x = floats((2, 3, 80))
    return sealed.rotate(x, mx.array(signs(80))), rotated(np.array(x).reshape(-1, 80)).reshape(x.shape)


@cache
def _sealed_sequence(tokens: int, first: int) -> Sequence:
    return sequence(FORM, 2, tokens, first)


def _sealed(rows: int, heads: int, tokens: int) -> tuple[mx.array, np.ndarray]:
    """Rows of which some see a page in codes that others do not."""
    queries, held = floats((rows, heads, 80)), _sealed_sequence(tokens, tokens - rows)
    y = sealed.attend(queries, tokens - rows, held.held, FORM, scale=0.2, softcap=30.0)
    return y, held.expected(queries, tokens - rows, scale=0.2, softcap=30.0)


def _sealed_few() -> tuple[mx.array, np.ndarray]:
    return _sealed(3, 8, 769)


def _sealed_many() -> tuple[mx.array, np.ndarray]:
    return _sealed(18, 2, 770)


def _verdict(edit: tuple[str, str], run: Callable[[], tuple[mx.array, np.ndarray]]) -> str:
    with emulated(edit=edit) as metal:
        try:
            found = "numbers" if worst(*run()) > 1e-5 else "nothing"
        except KernelFault as fault:
            found = fault.kind
        except CompileError:
            found = "compile"
    assert metal.edits == 1
    return found


CASES = [
    pytest.param(run, before, after, kind, id=f"{kernel}: {name}")
    for kernel, run, planted in (
        *((kernel, _product(kernel), row[-1]) for kernel, row in PRODUCTS.items()),
        ("qmv_experts", _experts(7), faults.QMV_EXPERTS),
        ("qmm_experts", _experts(40), faults.QMM_EXPERTS),
        ("qmv, fused", _fused, faults.QMV_FUSED),
        ("qmv_gated", _gated, faults.GATED),
        ("qmv_joined", _joined, faults.JOINED),
        ("attention", _attention, faults.ATTENTION_PART + faults.ATTENTION_MERGE),
        ("attention of many rows", _attention_rows, faults.ATTENTION_ROWS),
        ("seal", _seal, faults.SEAL),
        ("rotate", _rotate, faults.ROTATE),
        ("attention over sealed pages", _sealed_few, faults.SEALED_PART + faults.SEALED_MERGE),
        ("attention of many rows over sealed pages", _sealed_many, faults.SEALED_ROWS),
    )
    for name, before, after, kind in planted
]


@pytest.mark.parametrize(("run", "before", "after", "kind"), CASES)
def test_a_planted_fault_is_caught(run, before: str, after: str, kind: str) -> None:
    assert _verdict((before, after), run) == kind


@pytest.mark.parametrize(
    "run",
    [*map(_product, PRODUCTS), _experts(7), _experts(40), _fused, _gated, _joined, _attention, _attention_rows, _seal,
     _rotate, _sealed_few, _sealed_many],
)  # fmt: skip
def test_nothing_is_found_without_one(run) -> None:
    with emulated():
        assert worst(*run()) < 1e-5
