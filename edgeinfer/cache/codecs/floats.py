"""Numbers of 8 and 4 bits as floating point: FP8 in E4M3 (OCP, 2023) and NVFP4 (E2M1 with an E4M3 scale every 16).

The scale that NVIDIA keeps a tensor is one a row here, a power of two in one byte (E8M0): no calibration is needed, no
key is too large, and a factor of two changes no digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.cache.codecs.base import Bytes, Floats, Role
from edgeinfer.cache.codecs.packing import pack, packed_bytes, padded, unpack

_E8M0_BIAS = 127
_BLOCK = 16


def _magnitudes(exponent_bits: int, mantissa_bits: int) -> Floats:
    """What the codes of a format stand for, the sign left out; the bias is that of IEEE 754, nothing is infinite."""
    codes = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return np.asarray(fraction * 2.0 ** (np.maximum(exponent, 1) - bias), np.float32)


E4M3 = _magnitudes(4, 3)[:-1]  # the last code is no number
E2M1 = _magnitudes(2, 1)


@dataclass(frozen=True, slots=True)
class FP8:
    """E4M3; the row's largest number lies in the upper half of what the format reaches."""

    role: Role = "keys"

    @property
    def name(self) -> str:
        return "fp8"

    @property
    def bits(self) -> float:
        return 8

    def row_bytes(self, head: int) -> int:
        return 1 + head

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: the exponent, then a sign and seven bits a number."""
        exponent, scaled = _scaled(rows, float(E4M3[-1]))
        return np.concatenate([exponent, _nearest(scaled, E4M3) | _signs(scaled) << 7], axis=1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        return _signed(stored[:, 1:] & 127, stored[:, 1:] >> 7, E4M3) * _powers(stored[:, :1])


@dataclass(frozen=True, slots=True)
class NVFP4:
    """E2M1, in blocks of 16 whose scale is their largest number over 6, in E4M3."""

    role: Role = "keys"

    @property
    def name(self) -> str:
        return "nvfp4"

    @property
    def bits(self) -> float:
        return 4

    def row_bytes(self, head: int) -> int:
        blocks = -(-head // _BLOCK)
        return 1 + blocks + packed_bytes(blocks * _BLOCK, 4)

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: the exponent, the scales, then a sign and three bits a number."""
        exponent, scaled = _scaled(padded(rows, _BLOCK), float(E4M3[-1] * E2M1[-1]))
        blocks = scaled.reshape(len(rows), -1, _BLOCK)
        scales = _nearest(np.abs(blocks).max(axis=2) / E2M1[-1], E4M3)
        divisor = E4M3[scales][..., None]
        numbers = blocks / np.where(divisor > 0, divisor, np.float32(1))
        codes = np.where(divisor > 0, _nearest(numbers, E2M1) | _signs(numbers) << 3, 0).astype(np.uint8)
        return np.concatenate([exponent, scales, pack(codes.reshape(len(rows), -1), 4)], axis=1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        blocks = -(-head // _BLOCK)
        codes = unpack(stored[:, 1 + blocks :], 4, blocks * _BLOCK).reshape(len(stored), blocks, _BLOCK)
        numbers = _signed(codes & 7, codes >> 3, E2M1) * E4M3[stored[:, 1 : 1 + blocks]][..., None]
        return numbers.reshape(len(stored), -1)[:, :head] * _powers(stored[:, :1])


def _scaled(rows: Floats, largest: float) -> tuple[Bytes, Floats]:
    """Each row's power of two, as a byte, and the row divided by it, no number above ``largest``."""
    peak = np.abs(rows).max(axis=1, keepdims=True)
    _, exponent = np.frexp(peak / np.float32(largest))
    exponent = exponent - (np.ldexp(np.float32(largest), exponent - 1) >= peak)  # a peak that is exactly a power
    stored = np.clip(exponent + _E8M0_BIAS, 1, 254).astype(np.uint8)
    return stored, rows / _powers(stored)


def _powers(stored: Bytes) -> Floats:
    return np.ldexp(np.float32(1), stored.astype(np.int32) - _E8M0_BIAS).astype(np.float32)


def _nearest(numbers: NDArray[np.floating[Any]], magnitudes: Floats) -> Bytes:
    """The code of the nearest magnitude, of two that are as near the even one."""
    borders = (magnitudes[1:] + magnitudes[:-1]) / 2
    code = np.searchsorted(borders, np.abs(numbers))
    tie = np.append(borders, np.float32(np.inf))[code] == np.abs(numbers)
    even: Bytes = (code + (tie & (code % 2 == 1))).astype(np.uint8)
    return even


def _signs(numbers: NDArray[np.floating[Any]]) -> Bytes:
    signs: Bytes = np.signbit(numbers).astype(np.uint8)
    return signs


def _signed(codes: Any, signs: Any, magnitudes: Floats) -> Floats:
    numbers: Floats = np.where(signs > 0, -magnitudes[codes], magnitudes[codes])
    return numbers
