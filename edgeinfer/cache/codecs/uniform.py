"""Our code: rotate, then uniform levels with a searched step and one float16 scale for 128 numbers at most.

A rotation by random signs and a Walsh–Hadamard transform makes the numbers of a head nearly Gaussian, whatever they
were. A number is stored as c in -2^(b-1) … 2^(b-1)-1 and read as (c + ½) times the scale ("mid-rise": no level is 0).
The step is searched for each row around the best one for a Gaussian; at 8 bits it follows from the largest number.
Every sum runs over a head's dimensions in order, in float32: the kernels do the same, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.cache.codecs.base import Bytes, Floats, Role
from edgeinfer.quant.rotation import signs

GROUP = 128
"""Numbers that share a scale, at most."""
STEPS = {3: 0.586, 4: 0.335, 5: 0.188, 6: 0.104}
"""The step of least error for a Gaussian of unit variance, by bits."""
TRIED = tuple(np.float32(0.70 + 0.06 * i) for i in range(12))
"""Steps tried, as shares of that."""
LARGEST = np.float32(65504)
"""Of float16: a larger scale becomes this one."""
PLANES = {3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""How a code is split, lowest bits first: no field lies across two bytes."""


def block_size(head_size: int) -> int:
    """Numbers that are rotated together: the largest power of two that divides D."""
    return head_size & -head_size


def groups(head_size: int) -> int:
    """Scales of a row: as few as leave each at most GROUP numbers, and all as many."""
    return next(count for count in range(-(-head_size // GROUP), head_size + 1) if head_size % count == 0)


def rotate(rows: Floats) -> Floats:
    """(n, D) -> (n, D): signs, then the orthonormal Walsh–Hadamard transform of each block."""
    return _transformed(rows * signs(rows.shape[1]))


def rotate_back(rows: Floats) -> Floats:
    return _transformed(rows) * signs(rows.shape[1])


def _transformed(rows: Floats) -> Floats:
    count, size = rows.shape
    block = block_size(size)
    y = rows.reshape(count, size // block, block)
    half = 1
    while half < block:
        pairs = y.reshape(count, size // block, block // (2 * half), 2, half)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([low + high, low - high], axis=-2).reshape(y.shape)
        half *= 2
    result: Floats = (y * np.float32(block**-0.5)).reshape(count, size)
    return result


@dataclass(frozen=True, slots=True)
class Uniform:
    """``bits`` 3 to 6, or 8."""

    bits: int
    role: Role

    @property
    def name(self) -> str:
        return f"uniform{self.bits}"

    def row_bytes(self, head_size: int) -> int:
        return sum(-(-head_size * plane // 8) for plane in PLANES[self.bits]) + 2 * groups(head_size)

    def quantize(self, rows: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
        """(n, D) -> codes (n, D) and scales (n, groups), both of the rotated row.

        A row of zeros has the scale 0, one with a NaN or an infinity none that is finite.
        """
        with np.errstate(all="ignore"):
            count, size = rows.shape
            parts = groups(size)
            y = np.ascontiguousarray(
                rotate(np.asarray(rows, np.float32)).reshape(count * parts, -1).T
            )  # (D / parts, n)
            codes = self._codes(y)
            level = codes + np.float32(0.5)
            squares, product = _dot(level, level), _dot(y, level)
            scale = _dot(y, y) / product if self.role == "keys" else product / squares
            scale = np.where(_dot(y, y) == 0, np.float32(0), scale)
            scale = np.where(np.isfinite(scale), np.minimum(scale, LARGEST), scale)
            return (
                codes.T.astype(np.int8).reshape(count, size),
                np.ascontiguousarray(scale.astype(np.float16).reshape(count, parts)),
            )

    def _codes(self, y: Floats) -> Floats:
        """Whole numbers as float32, of columns y: (d, n)."""
        half = np.float32(1 << (self.bits - 1))
        if self.bits == 8:
            peak = np.abs(y).max(axis=0)
            return _rounded(y, _inverse(peak / np.float32(127.5)), half)
        sigma = np.sqrt(_dot(y, y) / np.float32(len(y)))
        best, codes = np.full(y.shape[1], -1, np.float32), np.zeros_like(y)
        for share in TRIED:
            tried = _rounded(y, _inverse(sigma * (np.float32(STEPS[self.bits]) * share)), half)
            level = tried + np.float32(0.5)
            product = _dot(y, level)
            kept = product * product / _dot(level, level)  # of the row's energy, with the best scale
            better = kept > best
            best = np.where(better, kept, best)
            codes = np.where(better, tried, codes)
        return codes

    def encode(self, rows: Floats) -> Bytes:
        codes, scales = self.quantize(rows)
        unsigned = codes.astype(np.int16) + (1 << (self.bits - 1))
        packed, shift = [], 0
        for plane in PLANES[self.bits]:
            packed.append(_pack(unsigned >> shift & (1 << plane) - 1, plane))
            shift += plane
        return np.concatenate([*packed, scales.view(np.uint8).reshape(len(rows), -1)], axis=1)

    def decode(self, packed: Bytes, head_size: int) -> Floats:
        unsigned, shift, at = np.zeros((len(packed), head_size), np.int16), 0, 0
        for plane in PLANES[self.bits]:
            size = -(-head_size * plane // 8)
            unsigned |= _unpack(packed[:, at : at + size], plane, head_size) << shift
            shift, at = shift + plane, at + size
        scales = np.ascontiguousarray(packed[:, at:]).view(np.float16).astype(np.float32)
        return self.restore((unsigned - (1 << (self.bits - 1))).astype(np.int8), scales)

    def restore(self, codes: NDArray[np.int8], scales: NDArray[np.floating]) -> Floats:
        """Rows from what ``quantize`` made of them."""
        count, size = codes.shape
        with np.errstate(invalid="ignore"):
            parts = (codes + np.float32(0.5)).reshape(count, scales.shape[1], -1)
            return rotate_back((parts * scales.astype(np.float32)[..., None]).reshape(count, size))


def _inverse(step: Floats) -> Floats:
    """1 / step, and 0 where the step is 0 or its inverse is too large for float32."""
    inverse = np.float32(1) / step
    result: Floats = np.where((step > 0) & (inverse <= np.float32(3.4e38)), inverse, np.float32(0))
    return result


def _rounded(y: Floats, inverse: Floats, half: np.float32) -> Floats:
    codes: Floats = np.floor(y * inverse)
    codes = np.where(codes > -half, codes, -half)  # a NaN becomes the lowest code, and the scale a NaN
    return np.where(codes < half - 1, codes, half - 1)


def _dot(a: Floats, b: Floats) -> Floats:
    """Sums over the first axis, in its order."""
    total = np.zeros(a.shape[1], np.float32)
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def _pack(values: NDArray[np.int16], bits: int) -> Bytes:
    """(n, D) numbers of ``bits`` -> (n, ceil(D bits / 8)); the first of a byte in its lowest bits."""
    each = 8 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % each))).astype(np.uint8).reshape(len(values), -1, each)
    packed: Bytes = np.bitwise_or.reduce(padded << (bits * np.arange(each, dtype=np.uint8)), axis=-1)
    return packed


def _unpack(packed: Bytes, bits: int, size: int) -> NDArray[np.int16]:
    each = 8 // bits
    spread = packed[..., None] >> (bits * np.arange(each, dtype=np.uint8)) & ((1 << bits) - 1)
    return spread.reshape(len(packed), -1)[:, :size].astype(np.int16)
