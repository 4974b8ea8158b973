"""Matrices of more than 2^31 bytes: the last rows are found. Nothing but those is held in memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.metal_kernels import products
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import Matrix, floats, matrix, wide, worst
from tests.metal_kernels.emulator import Sparse, emulated

pytestmark = pytest.mark.usefixtures("emulator_only")


def _at_the_end(w: Matrix, shape: tuple[int, ...]) -> tuple[mx.array, Sparse]:
    """A stand-in with the shape of a large array, and its bytes, of which the last are those of ``w``."""
    size = int(np.prod(shape))
    assert size > 2**31
    data = np.zeros(size, np.uint8)
    data[size - w.blocks.size :] = w.blocks.reshape(-1)
    return mx.broadcast_to(mx.array(0, mx.uint8), shape), Sparse(data, size - w.blocks.size)


def test_a_row_behind_the_first_2_gib() -> None:
    w, count = matrix(CODECS["q4_k"], 3, 256), 2**31 // 144 + 10
    array, sparse = _at_the_end(w, (count, 144))
    with emulated(sparse={"w": sparse}):
        y = products.rows(mx.array([count - 2, count - 1], mx.int32), array, w.codec)
    np.testing.assert_array_equal(np.array(y), w.weights[-2:])


@pytest.mark.parametrize("rows", [2, 20])
def test_an_expert_behind_the_first_2_gib(rows: int) -> None:
    w, x, count = matrix(CODECS["q8_0"], 8, 64), floats((rows, 64)), 2**31 // (8 * 68) + 10
    array, sparse = _at_the_end(w, (count, 8, 68))
    with emulated(sparse={"w": sparse}):
        y = products.multiply_experts(x, array, w.codec, mx.full(rows, count - 1, mx.int32))
    assert worst(y, wide(x) @ w.weights.T) < 1e-6
