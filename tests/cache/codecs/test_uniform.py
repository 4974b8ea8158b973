"""Our code against the rate–distortion figures that are known for it, and on rows that are no Gaussians."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.cache.codecs import uniform
from edgeinfer.cache.codecs.uniform import Uniform

MSE = {3: 0.0351, 4: 0.0099, 5: 0.00257, 6: 0.00065, 8: 0.000041}
"""Of unit Gaussian rows of 128, values' scale: research/kvcache.md, section 1.3."""
SIZES = (2, 6, 16, 40, 64, 80, 96, 112, 128, 160, 192, 256)


def gaussian(count: int, size: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


@pytest.mark.parametrize("bits", MSE)
def test_the_error_is_the_published_one(bits: int) -> None:
    rows = gaussian(2000, 128)
    codec = Uniform(bits, "values")
    error = float(np.mean((codec.decode(codec.encode(rows), 128) - rows) ** 2))
    assert error == pytest.approx(MSE[bits], rel=0.05)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", uniform.PLANES)
def test_what_is_stored_is_what_was_quantized(bits: int, size: int) -> None:
    rows = gaussian(50, size)
    for role in ("keys", "values"):
        codec = Uniform(bits, role)
        packed = codec.encode(rows)
        assert packed.shape == (50, codec.row_bytes(size))
        codes, scales = codec.quantize(rows)
        assert scales.shape == (50, uniform.groups(size))
        assert np.array_equal(codec.decode(packed, size), codec.restore(codes, scales))
        assert codes.min() >= -(1 << (bits - 1))
        assert codes.max() < 1 << (bits - 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_one(size: int) -> None:
    rows = gaussian(20, size)
    turned = uniform.rotate(rows)
    assert np.allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)
    assert np.allclose(uniform.rotate_back(turned), rows, atol=1e-5)


def test_the_scale_of_keys_is_unbiased_and_that_of_values_the_closest() -> None:
    rows, directions = gaussian(4000, 64, 1), gaussian(4000, 64, 2)
    keys, values = (Uniform(3, role).decode(Uniform(3, role).encode(rows), 64) for role in ("keys", "values"))
    share = np.sum(keys * rows, axis=1) / np.sum(rows * rows, axis=1)
    assert np.allclose(share, 1, atol=2e-3)  # float16 scales
    assert np.sum((values - rows) ** 2) < np.sum((keys - rows) ** 2)
    scores = np.sum(keys * directions, axis=1) - np.sum(rows * directions, axis=1)
    assert abs(scores.mean()) < 4 * scores.std() / np.sqrt(len(scores))


@pytest.mark.parametrize("bits", uniform.PLANES)
@pytest.mark.parametrize("role", ["keys", "values"])
def test_odd_rows(bits: int, role: str) -> None:
    size = 64
    rows = np.stack(
        [np.zeros(size), np.full(size, 3.0), np.full(size, 1e5), 1e5 * gaussian(1, size)[0], np.eye(size)[5] * 1e-20]
    ).astype(np.float32)
    codec = Uniform(bits, role)
    restored = codec.decode(codec.encode(rows), size)
    assert np.array_equal(restored[0], rows[0])
    error = np.linalg.norm(restored - rows, axis=1)[1:4] / np.linalg.norm(rows, axis=1)[1:4]
    assert (error < {3: 0.4, 4: 0.15, 5: 0.1, 6: 0.06, 8: 0.01}[bits]).all()
    assert np.abs(restored[4]).max() <= 1e-6  # below what a float16 scale holds


def test_what_is_no_number_stays_none() -> None:
    rows = gaussian(3, 64)
    rows[0, 3], rows[1, 9] = np.nan, np.inf
    for bits in uniform.PLANES:
        restored = Uniform(bits, "keys").decode(Uniform(bits, "keys").encode(rows), 64)
        assert not np.isfinite(restored[:2]).any()
        assert np.isfinite(restored[2]).all()
