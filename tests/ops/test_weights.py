"""Prepared weights against numpy's decoding of the same blocks."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.ops import PackedWeight, affine, host, plain
from edgeinfer.quant.codec import CODECS
from tests.tiny import encode

DENSE = ("f32", "f16", "bf16", "q2_k", "q3_k", "q6_k")


def packed(codec: str, rows: int = 24, columns: int = 512, scale: float = 1.0) -> PackedWeight:
    weights = np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32) * scale
    return PackedWeight(CODECS[codec], encode(weights, codec).view(np.uint8), (rows, columns))


def activations(rows: int, columns: int = 512) -> np.ndarray:
    return np.random.default_rng(4).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("codec", affine.CODECS)
def test_the_affine_form_loses_nothing(codec: str) -> None:
    weight = packed(codec)
    prepared = plain.prepare(weight, wide=False)
    assert isinstance(prepared, plain.AffineWeight)
    assert np.array_equal(prepared.embed(mx.arange(24)), weight.decode())


@pytest.mark.parametrize("codec", affine.CODECS)
def test_quantized_matmul_in_float32_equals_numpy(codec: str) -> None:
    weight, x = packed(codec), activations(5)
    prepared = plain.prepare(weight, wide=False)
    assert isinstance(prepared, plain.AffineWeight)
    scales, biases = (array.astype(mx.float32) for array in (prepared.scales, prepared.biases))
    found = mx.quantized_matmul(mx.array(x), prepared.packed, scales, biases, group_size=32, bits=prepared.bits)
    assert np.allclose(found, x @ weight.decode().T, atol=2e-4)


@pytest.mark.parametrize("codec", [*affine.CODECS, *DENSE])
@pytest.mark.parametrize("wide", [False, True])
def test_plain_linear(codec: str, wide: bool) -> None:
    """In float16: 512 products of order 1, summed by MLX's CPU build in float16 too."""
    weight, x = packed(codec), activations(5)
    found = np.array(plain.prepare(weight, wide).linear(mx.array(x)))
    assert np.allclose(found, x @ weight.decode().T, atol=0.6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("codec", ["q4_0", "q8_0", "f16", "q6_k"])
def test_wide_activations_do_not_overflow(codec: str) -> None:
    weight = packed(codec, scale=0.05)
    x = activations(3) * 1e6
    found = np.array(plain.prepare(weight, wide=True).linear(mx.array(x)))
    expected = x @ weight.decode().T
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert not np.isfinite(plain.prepare(weight, wide=False).linear(mx.array(x))).all()


@pytest.mark.parametrize("codec", [*affine.CODECS, *DENSE])
def test_host_weights_are_exact(codec: str) -> None:
    weight = packed(codec)
    prepared = host.prepare(weight, wide=False)
    assert np.array_equal(prepared.embed(mx.array([7, 3, 7])), weight.decode()[[7, 3, 7]])
    for rows in (1, 2, 33):
        x = activations(rows)
        found = prepared.linear(mx.array(x))
        assert np.allclose(found, x.astype(np.float64) @ weight.decode().T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("codec", [*affine.CODECS, *DENSE])
def test_bytes_are_known_beforehand(codec: str) -> None:
    weight = packed(codec)
    for here in (host, plain):
        assert here.prepare(weight, wide=False).nbytes == here.bits(weight.codec) * 24 * 512 / 8
