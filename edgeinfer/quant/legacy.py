"""Blocks of 32 weights with one float16 scale, and one float16 minimum in the ``_1`` formats.

A weight is ``d * q`` or ``d * q + m``. Layouts as in ggml's ``block_q4_0`` … ``block_q8_0``: nibble byte i of a block
holds weight i in its low half and weight i + 16 in its high half.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.plain import halves


def decode_q4_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18): d, 16 nibble bytes -> (n, 32)."""
    q = nibbles(blocks[:, 2:]).view(np.int8)
    q -= 8
    return scaled(q, halves(blocks, 0))


def decode_q4_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 20): d, m, 16 nibble bytes -> (n, 32)."""
    weights = scaled(nibbles(blocks[:, 4:]), halves(blocks, 0))
    weights += halves(blocks, 2)
    return weights


def decode_q5_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 22): d, 32 fifth bits, 16 nibble bytes -> (n, 32)."""
    q = nibbles(blocks[:, 6:])
    q |= fifth_bits(blocks[:, 2:6])
    signed = q.view(np.int8)
    signed -= 16
    return scaled(signed, halves(blocks, 0))


def decode_q5_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 24): d, m, 32 fifth bits, 16 nibble bytes -> (n, 32)."""
    q = nibbles(blocks[:, 8:])
    q |= fifth_bits(blocks[:, 4:8])
    weights = scaled(q, halves(blocks, 0))
    weights += halves(blocks, 2)
    return weights


def decode_q8_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 34): d, 32 signed bytes -> (n, 32)."""
    return scaled(blocks[:, 2:].view(np.int8), halves(blocks, 0))


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Low halves, then high halves. (n, bytes) -> (n, 2 * bytes)."""
    n, width = packed.shape
    q = np.empty((n, 2 * width), np.uint8)
    np.bitwise_and(packed, 15, out=q[:, :width])
    np.right_shift(packed, 4, out=q[:, width:])
    return q


def fifth_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bit i of the block as 0 or 16. (n, 4) -> (n, 32)."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    bits <<= 4
    return bits


def scaled(q: NDArray[np.uint8] | NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """q * scale in float32; numpy casts q in small buffers, so no float copy of it is made."""
    weights: NDArray[np.float32] = np.multiply(q, scale, dtype=np.float32)
    return weights
