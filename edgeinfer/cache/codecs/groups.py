"""Codes with scales of their own every 32 or 64 numbers: llama.cpp's q8_0 and q4_0, and MLX's affine.

llama.cpp rotates what it stores as q4_0 by a Hadamard transform over 64 channels (its pull request 21038).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np

from edgeinfer.cache.codecs.base import Bytes, Floats, Role
from edgeinfer.cache.codecs.packing import (
    LARGEST_HALF,
    bytes_to_halves,
    halves_to_bytes,
    pack,
    packed_bytes,
    padded,
    unpack,
)

_BLOCK = 32
_ROTATED = 64


@dataclass(frozen=True, slots=True)
class Q8_0:
    """Blocks of a float16 scale and 32 signed bytes, as ggml's ``block_q8_0``."""

    role: Role = "keys"

    @property
    def name(self) -> str:
        return "q8_0"

    @property
    def bits(self) -> float:
        return 8

    def row_bytes(self, head: int) -> int:
        return -(-head // _BLOCK) * (2 + _BLOCK)

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8."""
        blocks = padded(rows, _BLOCK).reshape(-1, _BLOCK)
        scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        codes = _away_from_zero(blocks * _inverse(scale)).astype(np.int8)
        return np.concatenate([halves_to_bytes(scale), codes.view(np.uint8)], axis=1).reshape(len(rows), -1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        blocks = stored.reshape(-1, 2 + _BLOCK)
        numbers = blocks[:, 2:].view(np.int8).astype(np.float32) * bytes_to_halves(blocks[:, :2])
        return numbers.reshape(len(stored), -1)[:, :head]


@dataclass(frozen=True, slots=True)
class Q4_0:
    """Blocks of a float16 scale and 32 codes, as ggml's ``block_q4_0``, after a Hadamard transform."""

    role: Role = "keys"

    @property
    def name(self) -> str:
        return "q4_0"

    @property
    def bits(self) -> float:
        return 4

    def row_bytes(self, head: int) -> int:
        return -(-head // _BLOCK) * (2 + _BLOCK // 2)

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8."""
        blocks = padded(_hadamard(rows), _BLOCK).reshape(-1, _BLOCK)
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
        scale = extreme / np.float32(-8)
        codes = np.minimum(15, (blocks * _inverse(scale) + np.float32(8.5)).astype(np.int8)).astype(np.uint8)
        nibbles = codes[:, : _BLOCK // 2] | codes[:, _BLOCK // 2 :] << 4
        return np.concatenate([halves_to_bytes(scale), nibbles], axis=1).reshape(len(rows), -1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        blocks = stored.reshape(-1, 2 + _BLOCK // 2)
        codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
        numbers = (codes.astype(np.float32) - 8) * bytes_to_halves(blocks[:, :2])
        return _hadamard(numbers.reshape(len(stored), -1)[:, :head])


@dataclass(frozen=True, slots=True)
class Affine:
    """scale * code + bias in float16 over groups, as ``mx.quantize``. What float16 does not hold is cut, as in MLX's
    own cache of that type."""

    width: int
    group: int
    role: Role = "keys"

    @property
    def name(self) -> str:
        return f"affine{self.width}-{self.group}"

    @property
    def bits(self) -> float:
        return self.width

    def row_bytes(self, head: int) -> int:
        groups = -(-head // self.group)
        return groups * (4 + packed_bytes(self.group, self.width))

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: the scales, the biases, the codes."""
        largest = np.float32((1 << self.width) - 1)
        groups = self._groups(np.clip(rows, -LARGEST_HALF, LARGEST_HALF))
        low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
        below = np.abs(low) > np.abs(high)
        edge, scale = np.where(below, low, high), np.maximum((high - low) / largest, np.float32(1e-7))
        scale = np.where(below, scale, -scale)
        steps = np.rint(edge / scale)  # the edge is met exactly, and zero with it
        scale = np.where(steps != 0, edge / np.where(steps != 0, steps, 1), scale)
        bias = np.where(steps != 0, edge, np.float32(0))
        codes = np.clip(np.rint((groups - bias) / scale), 0, largest).astype(np.uint8).reshape(len(rows), -1)
        return np.concatenate(
            [halves_to_bytes(scale[..., 0]), halves_to_bytes(bias[..., 0]), pack(codes, self.width)], axis=1
        )

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        groups = -(-head // self.group)
        scale, bias = (bytes_to_halves(stored[:, i : i + 2 * groups])[..., None] for i in (0, 2 * groups))
        codes = unpack(stored[:, 4 * groups :], self.width, groups * self.group)
        numbers: Floats = codes.reshape(len(stored), groups, self.group) * scale + bias
        return numbers.reshape(len(stored), -1)[:, :head]

    def _groups(self, rows: Floats) -> Floats:
        """(n, head) -> (n, groups, group); what a last group lacks repeats the row's last number."""
        filled = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.group)), mode="edge")
        return filled.reshape(len(rows), -1, self.group)


def _inverse(scale: Floats) -> Floats:
    return np.where(scale != 0, 1 / np.where(scale != 0, scale, np.float32(1)), np.float32(0))


def _away_from_zero(numbers: Floats) -> Floats:
    """C's ``roundf``."""
    whole = np.trunc(numbers)
    nearest: Floats = whole + np.sign(numbers) * (np.abs(numbers - whole) >= np.float32(0.5))
    return nearest


def _hadamard(rows: Floats) -> Floats:
    """The orthonormal transform, its own inverse, over each 64 channels, or the most that divide the head."""
    size = gcd(rows.shape[1], _ROTATED)
    return (rows.reshape(-1, size) @ _matrix(size)).reshape(rows.shape)


@cache
def _matrix(size: int) -> Floats:
    """Sylvester's construction: (size, size), a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    normal: Floats = (matrix / np.sqrt(np.float32(size))).astype(np.float32)
    return normal
