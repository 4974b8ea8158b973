"""Super-blocks of 256 weights: sub-blocks of 16 or 32 with small integer scales, which a float16 scales in turn.

A weight is ``(d * scale) * q`` or ``(d * scale) * q - (dmin * minimum)``, in this order of operations. Layouts as in
ggml's ``block_q2_K`` … ``block_q6_K``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.legacy import scaled
from edgeinfer.quant.plain import halves

PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]  # shifts of the four 2-bit fields of a byte
NIBBLES = np.arange(0, 8, 4, dtype=np.uint8)[:, None]
BITS = np.arange(8, dtype=np.uint8)[:, None]


def decode_q2_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 84): 16 scale and minimum nibbles, 64 bytes of 2-bit q, d, dmin -> (n, 256)."""
    scales = halves(blocks, 80) * (blocks[:, :16] & 15)
    minimums = halves(blocks, 82) * (blocks[:, :16] >> 4)
    return _affine(fields(blocks[:, 16:80], 32, PAIRS, 3), scales, minimums)


def decode_q3_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 110): 32 bytes of third bits, 64 bytes of 2-bit q, 12 bytes of 6-bit scales, d -> (n, 256)."""
    low = fields(blocks[:, 96:104], 8, NIBBLES, 15)
    high = fields(blocks[:, 104:108], 4, PAIRS, 3)
    high <<= 4
    scales = (low | high).view(np.int8) - np.int8(32)
    q = fields(blocks[:, 32:96], 32, PAIRS, 3)
    third = fields(blocks[:, :32], 32, BITS, 1)
    third <<= 2
    q |= third
    signed = q.view(np.int8)
    signed -= 4
    return by_sub_block(signed, halves(blocks, 108) * scales)


def decode_q4_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 144): d, dmin, 12 bytes of 6-bit scales and minimums, 128 nibble bytes -> (n, 256)."""
    return _affine(fields(blocks[:, 16:], 32, NIBBLES, 15), *scales_and_minimums(blocks))


def decode_q5_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 176): d, dmin, 12 bytes of 6-bit scales and minimums, 32 of fifth bits, 128 of nibbles -> (n, 256)."""
    q = fields(blocks[:, 48:], 32, NIBBLES, 15)
    fifth = fields(blocks[:, 16:48], 32, BITS, 1)
    fifth <<= 4
    q |= fifth
    return _affine(q, *scales_and_minimums(blocks))


def decode_q6_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 210): 128 nibble bytes, 64 bytes of upper 2 bits, 16 signed scales, d -> (n, 256)."""
    q = fields(blocks[:, :128], 64, NIBBLES, 15)
    upper = fields(blocks[:, 128:192], 32, PAIRS, 3)
    upper <<= 4
    q |= upper
    signed = q.view(np.int8)
    signed -= 32
    return by_sub_block(signed, halves(blocks, 208) * blocks[:, 192:208].view(np.int8))


def fields(packed: NDArray[np.uint8], run: int, shifts: NDArray[np.uint8], mask: int) -> NDArray[np.uint8]:
    """Bit fields of bytes: of each run of bytes the lowest field of all, then the next. (n, bytes) -> (n, fields)."""
    n = len(packed)
    fields = packed.reshape(n, -1, 1, run) >> shifts
    fields &= np.uint8(mask)
    return fields.reshape(n, -1)


def scales_and_minimums(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The eight scales and minimums of Q4_K and Q5_K, times d and dmin. (n, bytes) -> (n, 8), (n, 8).

    The 6-bit numbers 0 to 3 fill the low bits of bytes 0 to 3 (scales) and 4 to 7 (minimums); numbers 4 to 7 have their
    low four bits in bytes 8 to 11 and their upper two at the top of bytes 0 to 7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    return halves(blocks, 0) * scales, halves(blocks, 2) * minimums


def by_sub_block(q: NDArray[np.uint8] | NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """q * scale of its sub-block. (n, 256), (n, sub-blocks) -> (n, 256)."""
    n, count = scales.shape
    return scaled(q.reshape(n, count, -1), scales[:, :, None]).reshape(n, -1)


def _affine(q: NDArray[np.uint8], scales: NDArray[np.float32], minimums: NDArray[np.float32]) -> NDArray[np.float32]:
    """q * scale - minimum of its sub-block. (n, 256), (n, sub-blocks) twice -> (n, 256)."""
    n, count = scales.shape
    weights = by_sub_block(q, scales).reshape(n, count, -1)
    weights -= minimums[:, :, None]
    return weights.reshape(n, -1)
