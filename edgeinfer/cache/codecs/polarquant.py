"""PolarQuant (Han, Kacham, Karbasi, Mirrokni, Zandieh, 2025, arXiv 2502.02617): angles of a randomly rotated row.

Pairs of numbers become a radius and an angle, pairs of radii again, four times over: a block of 16 keeps one radius in
float16, eight angles of 4 bits around the circle, and 4 + 2 + 1 angles of 2 bits in [0, π/2] at the levels of least
error for their known densities. That is 62 bits a block, 3.875 a channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from edgeinfer.cache.codecs.base import Bytes, Floats, Role
from edgeinfer.cache.codecs.haar import rotation
from edgeinfer.cache.codecs.lloydmax import polar
from edgeinfer.cache.codecs.packing import bytes_to_halves, halves_to_bytes, pack, packed_bytes, unpack

_BLOCK = 16
_CIRCLE_BITS, _ANGLE_BITS = 4, 2
_SEED = 2502
_RANGE = 64.0
"""Radii are stored divided by this: those of 1e5 in every channel still fit float16."""


@dataclass(frozen=True, slots=True)
class PolarQuant:
    """Heads whose size is no multiple of 16 have blocks of the largest power of two that divides it."""

    role: Role = "keys"

    @property
    def name(self) -> str:
        return "polarquant"

    @property
    def bits(self) -> float:
        return (8 * _CIRCLE_BITS + 7 * _ANGLE_BITS) / _BLOCK

    def row_bytes(self, head: int) -> int:
        blocks, levels = _blocks(head)
        return 2 * blocks + sum(packed_bytes(head >> level, _bits(level)) for level in range(1, levels + 1))

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: the radii, then the angles, the last pairing's first."""
        radii, angles = rows @ rotation(rows.shape[1], _SEED).T, []
        for level in range(1, _blocks(rows.shape[1])[1] + 1):
            first, second = radii[:, 0::2], radii[:, 1::2]
            angles.append(pack(_codes(np.arctan2(second, first), level), _bits(level)))
            radii = np.hypot(first, second)
        return np.concatenate([halves_to_bytes(radii / np.float32(_RANGE)), *reversed(angles)], axis=1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        blocks, levels = _blocks(head)
        radii, start = bytes_to_halves(stored[:, : 2 * blocks]) * np.float32(_RANGE), 2 * blocks
        for level in range(levels, 0, -1):
            stop = start + packed_bytes(head >> level, _bits(level))
            angle = _angles(unpack(stored[:, start:stop], _bits(level), head >> level), level)
            halves: Floats = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
            radii = (radii[..., None] * halves).reshape(len(stored), -1)
            start = stop
        decoded: Floats = np.matmul(radii, rotation(head, _SEED), dtype=np.float32)
        return decoded


def _blocks(head: int) -> tuple[int, int]:
    """How many blocks a head has, and how often the numbers of one are paired."""
    size = gcd(head, _BLOCK)
    return head // size, size.bit_length() - 1


def _bits(level: int) -> int:
    return _CIRCLE_BITS if level == 1 else _ANGLE_BITS


def _codes(angles: Floats, level: int) -> Bytes:
    """Angles around the circle fall into equal sectors: there the density is even."""
    if level > 1:
        return polar(_ANGLE_BITS, level).nearest(angles)
    sectors = 1 << _CIRCLE_BITS
    codes: Bytes = (np.floor(angles * np.float32(sectors / (2 * np.pi))).astype(np.int32) % sectors).astype(np.uint8)
    return codes


def _angles(codes: Bytes, level: int) -> Floats:
    if level > 1:
        return polar(_ANGLE_BITS, level).levels[codes]
    return (codes + np.float32(0.5)) * np.float32(2 * np.pi / (1 << _CIRCLE_BITS))
