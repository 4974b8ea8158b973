"""One or two bits a weight with one float16 scale a block: the ternary formats of BitNet models, and ggml's Q1_0, Q2_0.

Layouts as in ggml's ``block_tq1_0``, ``block_tq2_0``, ``block_q1_0`` and ``block_q2_0``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.kquants import PAIRS, fields
from edgeinfer.quant.legacy import scaled
from edgeinfer.quant.plain import halves

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def decode_tq1_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 54): 48 bytes of five base-3 digits, 4 of four, d -> (n, 256).

    A byte holds its digits as a fraction of 256, so that the next one is what a multiplication by 3 carries out.
    """
    parts = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    shifted = [(part[:, None] * _POWERS[:digits]).reshape(len(blocks), -1) for part, digits in parts]
    q = (np.concatenate(shifted, axis=1).astype(np.uint16) * 3 >> 8).astype(np.int8)
    q -= 1
    return scaled(q, halves(blocks, 52))


def decode_tq2_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 66): 64 bytes of 2-bit q, d -> (n, 256)."""
    return _less_one(fields(blocks[:, :64], 32, PAIRS, 3), halves(blocks, 64))


def decode_q1_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18): d, 128 bits, 1 for d and 0 for -d -> (n, 128)."""
    return _less_one(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") << np.uint8(1), halves(blocks, 0))


def decode_q2_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18): d, 16 bytes of 2-bit q -> (n, 64)."""
    return _less_one(fields(blocks[:, 2:], 1, PAIRS, 3), halves(blocks, 0))


def _less_one(q: NDArray[np.uint8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    signed = q.view(np.int8)
    signed -= 1
    return scaled(signed, scale)
