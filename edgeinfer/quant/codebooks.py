"""Four bits a weight that name one of sixteen values: IQ4 (spaced as weights are), and FP4 with shared exponents.

Layouts as in ggml's ``block_iq4_nl``, ``block_iq4_xs``, ``block_mxfp4`` and ``block_nvfp4``. An E2M1 number is stored
as twice its value, so its scale is half of what the format says (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.kquants import NIBBLES, by_sub_block, fields
from edgeinfer.quant.legacy import nibbles, scaled
from edgeinfer.quant.plain import halves

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def decode_iq4_nl(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 18): d, 16 nibble bytes -> (n, 32)."""
    return scaled(IQ4[nibbles(blocks[:, 2:])], halves(blocks, 0))


def decode_iq4_xs(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 136): d, 8 upper 2 bits of scales, 8 lower nibbles, 128 nibble bytes -> (n, 256)."""
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = (blocks[:, 4:8, None] >> NIBBLES[:, 0] & 15).reshape(-1, 8)
    scales = (lower | upper << 4).astype(np.int8) - np.int8(32)
    return by_sub_block(IQ4[fields(blocks[:, 8:], 16, NIBBLES, 15)], halves(blocks, 0) * scales)


def decode_mxfp4(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 17): an E8M0 exponent, 16 nibble bytes -> (n, 32)."""
    return scaled(E2M1[nibbles(blocks[:, 1:])], half_of_e8m0(blocks[:, :1]))


def decode_nvfp4(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 36): 4 unsigned E4M3 scales, per 16 weights 8 nibble bytes -> (n, 64)."""
    return by_sub_block(E2M1[fields(blocks[:, 4:], 8, NIBBLES, 15)], half_of_ue4m3(blocks[:, :4]))


def half_of_e8m0(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """2^(e - 128)."""
    bits = exponents.astype(np.uint32)
    subnormal = np.left_shift(np.uint32(0x200000), np.minimum(bits, 1))
    return np.where(bits < 2, subnormal, np.maximum(bits, 1) - 1 << 23).astype(np.uint32).view(np.float32)


def half_of_ue4m3(scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Half of an E4M3 number, whatever its sign bit; 0 for 0x7f, as in ggml."""
    every = np.arange(256)
    exponent, mantissa = every >> 3 & 15, (every & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    table = np.where(exponent == 0, mantissa * np.float32(2.0**-10), normal).astype(np.float32)
    table[0x7F] = 0
    return table[scales]
