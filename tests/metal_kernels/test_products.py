"""Products and rows of packed matrices against numpy in float64, and against themselves."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.metal_kernels import products, tuning
from edgeinfer.metal_kernels.specs import ACTIVATIONS, KERNELS
from edgeinfer.quant.codec import CODECS, Codec
from tests.metal_kernels.blocks import BOUNDS, DECODABLE, floats, gated, matrix, rms_norm, wide, worst
from tests.metal_kernels.emulator import emulated

pytestmark = pytest.mark.usefixtures("metal")
SAMPLED = [CODECS[name] for name in ("q8_0", "q4_k", "q6_k")]
CASES = [(codec, mx.float32) for codec in DECODABLE]
CASES += [(codec, half) for codec in SAMPLED for half in (mx.float16, mx.bfloat16)]


def columns_of(codec: Codec) -> int:
    """No whole number of the 256 weights that a simdgroup takes at once, where the codec allows it."""
    return {1: 360, 32: 352 if codec.bytes % 2 == 0 else 320, 64: 320, 128: 384, 256: 512}[codec.weights]


@pytest.mark.parametrize(("codec", "dtype"), CASES, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize("rows", [1, 3, 37])
def test_products_of_every_codec(codec: Codec, dtype: mx.Dtype, rows: int) -> None:
    w, x = matrix(codec, 13, columns_of(codec)), floats((rows, columns_of(codec)), dtype)
    with emulated():
        y = products.multiply(x, w.array, codec)
    assert y.dtype == dtype
    assert worst(y, wide(x) @ w.weights.T.astype(np.float64)) < BOUNDS[dtype]


@pytest.mark.parametrize(
    ("name", "outputs", "columns", "rows"),
    [("f32", 1, 8, 1), ("f16", 9, 8, 2), ("q8_0", 1, 32, 1), ("q4_0", 8, 32, 5), ("q4_k", 17, 256, 16),
     ("q4_0", 70, 96, 70), ("f32", 33, 40, 33), ("q6_k", 7, 768, 17)],
)  # fmt: skip
@pytest.mark.parametrize("kernel", [products.qmv, products.qmm])
def test_odd_shapes(kernel, name: str, outputs: int, columns: int, rows: int) -> None:
    w, x = matrix(CODECS[name], outputs, columns), floats((rows, columns))
    with emulated():
        y = kernel(x, w.array, w.codec)
    assert worst(y, wide(x) @ w.weights.T.astype(np.float64)) < 1e-6


@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q6_k"])
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    w, x = matrix(CODECS[name], 21, 512), floats((16, 512))
    with emulated():
        alone = np.concatenate([np.array(products.qmv(x[m : m + 1], w.array, w.codec)) for m in range(16)])
        for rows in (2, 3, 4, 8, 16):
            together = np.array(products.qmv(x[:rows], w.array, w.codec))
            np.testing.assert_array_equal(together.view(np.uint32), alone[:rows].view(np.uint32))


@pytest.mark.parametrize("name", ["q4_k", "q8_0", "f16"])
@pytest.mark.parametrize("chosen", [[2], [0, 0, 2, 2, 2], [3, 1, 3], [0] * 20 + [2] * 17 + [3] * 3])
def test_each_row_by_the_matrix_of_its_expert(name: str, chosen: list[int]) -> None:
    w, x = matrix(CODECS[name], 4 * 35, 256), floats((len(chosen), 256))
    stacked = w.array.reshape(4, 35, -1)
    with emulated():
        y = products.multiply_experts(x, stacked, w.codec, mx.array(chosen, mx.int32))
    weights = w.weights.reshape(4, 35, 256)[chosen].astype(np.float64)
    assert worst(y, np.einsum("mk,mnk->mn", wide(x), weights)) < 1e-6


@pytest.mark.usefixtures("emulator_only")
def test_rows_of_one_expert_read_it_once() -> None:
    w = matrix(CODECS["q4_k"], 4 * 35, 256)
    with emulated() as metal:
        chosen = mx.array([1] * 5 + [2] * 3, mx.int32)
        products.multiply_experts(floats((8, 256)), w.array.reshape(4, 35, -1), w.codec, chosen)
    assert metal.reports[0].read["w"] == 2 * w.blocks.nbytes // 4


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_rows_decode_to_the_bit(codec: Codec) -> None:
    w = matrix(codec, 9, columns_of(codec))
    tokens = [8, 0, 3]
    with emulated():
        exact = np.array(products.rows(mx.array(tokens, mx.int32), w.array, codec))
    np.testing.assert_array_equal(exact.view(np.uint32), w.weights[tokens].view(np.uint32))


def test_a_matrix_decodes_to_half() -> None:
    w = matrix(CODECS["q4_k"], 9, 512)
    with emulated():
        half = np.array(products.decode(w.array, w.codec))
    np.testing.assert_array_equal(half, w.weights.astype(np.float16))


@pytest.mark.parametrize(("name", "size"), [("q4_k", 1.0), ("q8_0", 1e6), ("f16", 1e-6)])
def test_very_many_rows_take_a_dense_product(name: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that float16 could not hold as well, and a matrix that is decoded in slices."""
    w, x = matrix(CODECS[name], 37, 512), size * floats((40, 512))
    monkeypatch.setattr(products, "tuning", lambda: replace(tuning.DEFAULT, dense_rows=40))
    monkeypatch.setattr(products, "DECODED", 2 * 512 * 16)
    with emulated() as metal:
        y = products.multiply(x, w.array, w.codec)
        few = products.multiply(x[:39], w.array, w.codec)
    assert worst(y, wide(x) @ w.weights.T.astype(np.float64)) < 1e-3
    assert worst(few, wide(x[:39]) @ w.weights.T.astype(np.float64)) < 1e-6
    launched = [name.partition("<")[0] for name in metal.texts]
    assert mx.metal.is_available() or launched == ["edgeinfer_rows", "edgeinfer_qmm"]


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize("rows", [3, 40])
def test_no_bit_depends_on_the_schedule(order: str, rows: int) -> None:
    w, x = matrix(CODECS["q4_k"], 21, 512), floats((rows, 512))
    with emulated():
        forward = np.array(products.multiply(x, w.array, w.codec))
    with emulated(order=order, seed=rows):
        np.testing.assert_array_equal(np.array(products.multiply(x, w.array, w.codec)), forward)


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_few_rows_read_each_byte_of_the_matrix_once(codec: Codec) -> None:
    w = matrix(codec, 13, columns_of(codec))
    for rows in (1, 3):
        with emulated() as metal:
            products.qmv(floats((rows, columns_of(codec))), w.array, codec)
        assert metal.reports[-1].read["w"] == w.blocks.nbytes


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_traffic_grows_with_x_alone(rows: int) -> None:
    w = matrix(CODECS["q4_k"], 16, 1024)
    with emulated() as metal:
        products.qmv(floats((rows, 1024)), w.array, w.codec)
    assert metal.reports[-1].read["w"] == w.blocks.nbytes
    assert metal.reports[-1].threadgroup_bytes == (8 if rows <= 8 else 4) * 144  # 144 bytes hold 256 weights


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("used", [("gain",), ("bias",), ("residual",), ("gain", "bias", "residual")])
def test_norm_bias_and_residual_go_along(rows: int, used: tuple[str, ...]) -> None:
    w, x = matrix(CODECS["q6_k"], 13, 512), floats((rows, 512))
    given = {"gain": floats((512,), seed=3), "bias": floats((13,), seed=4), "residual": floats((rows, 13), seed=2)}
    extras = products.Extras(eps=1e-5, **{name: given[name] for name in used})
    with emulated():
        y = products.qmv(x, w.array, w.codec, extras)
    expected = (rms_norm(x, given["gain"], 1e-5) if "gain" in used else wide(x)) @ w.weights.T
    expected = expected + sum(wide(given[name]) for name in used if name != "gain")
    assert worst(y, expected) < 1e-6


@pytest.mark.parametrize(("name", "last", "rows"), [("q4_k", "q6_k", 1), ("q4_k", "q4_k", 5), ("q8_0", "f16", 19)])
def test_three_matrices_in_one_launch_have_the_bits_of_three(name: str, last: str, rows: int) -> None:
    matrices = [
        matrix(CODECS[name], 13, 512),
        matrix(CODECS[name], 6, 512, seed=8),
        matrix(CODECS[last], 7, 512, seed=9),
    ]
    x, residual = floats((rows, 512)), floats((rows, 26), seed=2)
    extras = products.Extras(floats((512,), seed=3), 1e-5, floats((26,), seed=4), residual)
    with emulated() as metal:
        y = products.qmv_joined(x, [each.array for each in matrices], CODECS[name], CODECS[last], extras)
        launches, at, alone = len(metal.reports), 0, []
        for each in matrices:
            end = at + len(each.blocks)
            part = replace(extras, bias=extras.bias[at:end], residual=residual[:, at:end])
            alone.append(np.array(products.qmv(x, each.array, each.codec, part)))
            at = end
    np.testing.assert_array_equal(np.array(y).view(np.uint32), np.concatenate(alone, axis=1).view(np.uint32))
    assert mx.metal.is_available() or launches == 1
    if not mx.metal.is_available():
        tiles = -(-rows // 16)
        for given, each in zip(("w", "second", "third"), matrices, strict=True):
            assert metal.reports[0].read[given] == tiles * each.blocks.nbytes


def test_what_is_fused_is_what_kernels_take() -> None:
    fused = {name: spec.fuses for name, spec in KERNELS.items() if spec.fuses}
    assert fused == {
        "qmv": {"norm", "bias", "residual"},
        "qmv_joined": {"norm", "bias", "residual"},
        "qmv_gated": {"norm", "activation"},
    }


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("name", "rows"), [("q4_k", 1), ("q5_0", 9)])
def test_gate_and_up_in_one_launch(activation: str, name: str, rows: int) -> None:
    gate, up = matrix(CODECS[name], 13, 512), matrix(CODECS[name], 13, 512, seed=9)
    x, gain = floats((rows, 512)), floats((512,), seed=3)
    with emulated():
        y = products.qmv_gated(x, gate.array, up.array, gate.codec, activation, products.Extras(gain, 1e-5))
    assert worst(y, gated(gate, up, rms_norm(x, gain, 1e-5), activation)) < 1e-6


def test_what_has_no_kernel_is_named() -> None:
    assert not products.supports(CODECS["q8_1"], 256)
    assert not products.supports(CODECS["mxfp4"], 96)  # kernels read a row in steps of two bytes
    assert not products.supports(CODECS["f32"], 20)
    assert all(products.supports(codec, 256) for codec in DECODABLE)
