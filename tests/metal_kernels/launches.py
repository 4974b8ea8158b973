"""A launch of every kernel, with what must come of it: for tests that want all of them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer.cache.codecs.uniform import Uniform, signs
from edgeinfer.metal_kernels import attention, products, sealed
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import attention_in_float64, floats, gated, kv_cache, matrix, rms_norm, wide
from tests.metal_kernels.sealed_blocks import sequence


@dataclass(frozen=True, slots=True)
class Launch:
    """``kernels``: the names it launches. ``run`` gives what was found and what was expected."""

    kernels: tuple[str, ...]
    run: Callable[[], tuple[mx.array, np.ndarray]]


def _few(codec: str) -> tuple[mx.array, np.ndarray]:
    w, x, gain, bias = matrix(CODECS[codec], 13, 512), floats((3, 512)), floats((512,), seed=3), floats((13,), seed=4)
    y = products.qmv(x, w.array, w.codec, products.Extras(gain, 1e-5, bias))
    return y, wide(bias) + rms_norm(x, gain, 1e-5) @ w.weights.T


def _joined() -> tuple[mx.array, np.ndarray]:
    first, last, x = matrix(CODECS["q4_k"], 13, 512), matrix(CODECS["q6_k"], 7, 512), floats((3, 512))
    y = products.qmv_joined(x, [first.array, first.array, last.array], first.codec, last.codec)
    return y, wide(x) @ np.concatenate([first.weights, first.weights, last.weights]).T


def _gated() -> tuple[mx.array, np.ndarray]:
    gate, up, x = matrix(CODECS["q4_k"], 13, 512), matrix(CODECS["q4_k"], 13, 512, seed=9), floats((3, 512))
    return products.qmv_gated(x, gate.array, up.array, gate.codec, "gelu"), gated(gate, up, wide(x), "gelu")


def _many(codec: str, rows: int) -> tuple[mx.array, np.ndarray]:
    w, x = matrix(CODECS[codec], 37, 512), floats((rows, 512))
    return products.qmm(x, w.array, w.codec), wide(x) @ w.weights.T


def _experts(rows: int) -> tuple[mx.array, np.ndarray]:
    w, x, chosen = matrix(CODECS["q8_0"], 3 * 13, 64), floats((rows, 64)), [0] * (rows // 2) + [2] * (rows - rows // 2)
    weights = w.weights.reshape(3, 13, 64)[chosen].astype(np.float64)
    y = products.multiply_experts(x, w.array.reshape(3, 13, -1), w.codec, mx.array(chosen, mx.int32))
    return y, np.einsum("mk,mnk->mn", wide(x), weights)


def _rows() -> tuple[mx.array, np.ndarray]:
    w = matrix(CODECS["q6_k"], 13, 512)
    return products.rows(mx.array([12, 0, 5], mx.int32), w.array, w.codec), w.weights[[12, 0, 5]]


def _attention(
    rows: int, softcap: float, attend: Callable[..., mx.array] = attention.attend
) -> tuple[mx.array, np.ndarray]:
    queries, length = floats((rows, 8, 64)), 270
    options = {"scale": 0.125, "window": 260, "softcap": softcap, "sinks": floats((8,), seed=4)}
    keys, values = kv_cache(2, length, 64, 2), kv_cache(2, length, 64, 3)
    y = attend(queries, keys, values, length, **options)
    return y, attention_in_float64(queries, keys, values, length, **options)


def _seal() -> tuple[mx.array, np.ndarray]:
    """The scales of a page's values, which are its last bytes."""
    values = kv_cache(1, 128, 64, 3)
    page = sealed.seal(values, values, 0, 1, sealed.PageFormat(64, 6, 4), mx.array(signs(64)))
    _, scales = Uniform(4, "values").quantize(np.array(values[0], np.float32))
    return page[0, 0, -256:].view(mx.float16), scales[:, 0].astype(np.float64)


def _sealed(rows: int) -> tuple[mx.array, np.ndarray]:
    form, queries = sealed.PageFormat(64, 6, 4), floats((rows, 4, 64))
    cached = sequence(form, 2, 650, 650 - rows)
    y = sealed.attend(queries, 650 - rows, cached.held, form, scale=0.125, softcap=20.0)
    return y, cached.expected(queries, 650 - rows, scale=0.125, softcap=20.0)


LAUNCHES: Mapping[str, Launch] = {
    "few rows": Launch(("qmv",), lambda: _few("q4_k")),
    "few rows, codebook": Launch(("qmv",), lambda: _few("iq2_s")),
    "few rows, bfloat16": Launch(("qmv",), lambda: _few("bf16")),
    "three matrices": Launch(("qmv_joined",), _joined),
    "gated": Launch(("qmv_gated",), _gated),
    "one tile of rows": Launch(("qmm",), lambda: _many("q4_k", 20)),
    "more tiles of rows": Launch(("qmm",), lambda: _many("mxfp4", 70)),
    "experts, few rows": Launch(("qmv_experts",), lambda: _experts(7)),
    "experts, many rows": Launch(("qmm_experts",), lambda: _experts(40)),
    "rows": Launch(("rows",), _rows),
    "attention": Launch(("attention_part", "attention_merge"), lambda: _attention(3, 0.0)),
    "attention of many rows": Launch(("attention_rows",), lambda: _attention(20, 5.0, attention.attend_rows)),
    "seal": Launch(("seal",), _seal),
    "attention over sealed pages": Launch(("rotate", "sealed_part", "sealed_merge"), lambda: _sealed(3)),
    "attention of many rows over sealed pages": Launch(("rotate", "sealed_rows", "sealed_merge"), lambda: _sealed(20)),
    "attention with a softcap": Launch(("attention_part", "attention_merge"), lambda: _attention(1, 5.0)),
}
