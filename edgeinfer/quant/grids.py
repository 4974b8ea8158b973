"""The IQ1, IQ2 and IQ3 formats: a group of four or eight weights is a point of a codebook, with signs of its own.

A weight is ``(d * scale / 2^n) * q`` with odd scales. IQ1 stores ternary points and moves each group by an eighth, up
or down, so its q are ``8 * point ± 1``. Layouts as in ggml's ``block_iq1_s`` … ``block_iq3_s``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.kquants import NIBBLES, PAIRS, by_sub_block
from edgeinfer.quant.plain import halves

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_BITS = np.arange(8, dtype=np.uint8)
_SIGN_FIELDS = np.array([0, 7, 14, 21], np.uint32)
_TRIPLES = np.array([0, 3, 6, 9], np.uint16)
_TWOS = (8, 25, 43)
_GRIDS = {  # in the order of grids.bin: points, coordinates, and what each stored coordinate stands for
    "iq2_xxs": (256, 8, _TWOS),
    "iq2_xs": (512, 8, _TWOS),
    "iq2_s": (1024, 8, _TWOS),
    "iq1": (2048, 8, (-8, 0, 8)),
    "iq3_xxs": (256, 4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "iq3_s": (512, 4, tuple(range(1, 16, 2))),
}


@cache
def grid(name: str) -> NDArray[np.int8]:
    """(points, coordinates) of a codebook. ``grids.bin`` stores a point as one number, its first coordinate lowest."""
    start = 0
    for known, (points, coordinates, values) in _GRIDS.items():
        if known == name:
            raw = Path(__file__).with_name("grids.bin").read_bytes()[2 * start : 2 * (start + points)]
            bits = 2 if coordinates == 8 else 3
            places = np.frombuffer(raw, "<u2")[:, None] >> np.arange(0, bits * coordinates, bits, dtype=np.uint16)
            coded = np.array([*values, *[0] * (2**bits - len(values))], np.int8)
            known_points: NDArray[np.int8] = coded[places & (2**bits - 1)]
            return known_points
        start += points
    raise KeyError(name)


def decode_iq2_xxs(blocks: Bytes) -> Floats:
    """(n, 66): d, then per 32 weights four grid bytes and a word of four sign fields and a scale -> (n, 256)."""
    words = _words(blocks[:, 2:]).reshape(-1, 8, 2)
    points = grid("iq2_xxs")[_contiguous(words[..., 0]).view(np.uint8).reshape(len(blocks), 32)]
    return by_sub_block(_signed(points, _even_signs(words[..., 1])), _odd_scales(blocks, words[..., 1] >> 28, 3))


def decode_iq2_xs(blocks: Bytes) -> Floats:
    """(n, 74): d, 32 numbers of 9 grid and 7 sign bits, 16 scale nibbles -> (n, 256)."""
    numbers = _contiguous(blocks[:, 2:66]).view("<u2")
    signs = _with_parity((numbers >> 9).astype(np.uint8))
    return by_sub_block(
        _signed(grid("iq2_xs")[numbers & 511], signs), _odd_scales(blocks, _nibble_pairs(blocks[:, 66:]), 3)
    )


def decode_iq2_s(blocks: Bytes) -> Floats:
    """(n, 82): d, 32 grid bytes, 32 sign bytes, 32 upper 2 bits, 16 scale nibbles -> (n, 256)."""
    upper = (blocks[:, 66:74, None] >> PAIRS[:, 0] & 3).reshape(-1, 32).astype(np.uint16)
    points = grid("iq2_s")[blocks[:, 2:34] | upper << 8]
    return by_sub_block(_signed(points, blocks[:, 34:66]), _odd_scales(blocks, _nibble_pairs(blocks[:, 74:]), 3))


def decode_iq3_xxs(blocks: Bytes) -> Floats:
    """(n, 98): d, 64 grid bytes, per 32 weights a word of four sign fields and a scale -> (n, 256)."""
    words = _words(blocks[:, 66:])
    points = grid("iq3_xxs")[blocks[:, 2:66]].reshape(-1, 32, 8)
    return by_sub_block(_signed(points, _even_signs(words)), _odd_scales(blocks, words >> 28, 2))


def decode_iq3_s(blocks: Bytes) -> Floats:
    """(n, 110): d, 64 grid bytes, their 64 ninth bits, 32 sign bytes, 8 scale nibbles -> (n, 256)."""
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    points = grid("iq3_s")[blocks[:, 2:66] | ninth << 8].reshape(-1, 32, 8)
    return by_sub_block(_signed(points, blocks[:, 74:106]), _odd_scales(blocks, _nibble_pairs(blocks[:, 106:]), 0))


def decode_iq1_s(blocks: Bytes) -> Floats:
    """(n, 50): d, 32 grid bytes, 8 numbers of four upper 3 bits, a scale and the direction -> (n, 256)."""
    numbers = _contiguous(blocks[:, 34:]).view("<u2")
    upper = (numbers[..., None] >> _TRIPLES & 7).reshape(-1, 32)
    q = grid("iq1")[blocks[:, 2:34] | upper << 8].reshape(-1, 8, 32) + _directions(numbers >> 15)[..., None]
    return by_sub_block(q.reshape(-1, 256), _odd_scales(blocks, numbers >> 12 & 7, 3))


def decode_iq1_m(blocks: Bytes) -> Floats:
    """(n, 56): 32 grid bytes, 32 nibbles of upper 3 bits and a direction, 4 numbers of four scales and a part of d."""
    nibbles = (blocks[:, 32:48, None] >> NIBBLES[:, 0] & 15).reshape(-1, 32)
    points = grid("iq1")[blocks[:, :32] | (nibbles & 7).astype(np.uint16) << 8]
    numbers = _contiguous(blocks[:, 48:]).view("<u2")
    parts = numbers >> 12
    d = (parts[:, 0] | parts[:, 1] << 4 | parts[:, 2] << 8 | parts[:, 3] << 12)[:, None].view("<f2").astype(np.float32)
    scales = (numbers[..., None] >> _TRIPLES & 7).reshape(-1, 16)
    q = points + _directions(nibbles >> 3)[..., None]
    return by_sub_block(q.reshape(-1, 256), d * (2 * scales + 1).astype(np.float32) * np.float32(1 / 8))


def _contiguous(blocks: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(blocks)


def _words(blocks: Bytes) -> NDArray[np.uint32]:
    words: NDArray[np.uint32] = _contiguous(blocks).view("<u4")
    return words


def _nibble_pairs(packed: Bytes) -> Bytes:
    """Of each byte the low half, then the high one. (n, bytes) -> (n, 2 * bytes)."""
    return (packed[..., None] >> NIBBLES[:, 0] & 15).astype(np.uint8).reshape(len(packed), -1)


def _odd_scales(blocks: Bytes, scales: NDArray[Any], shift: int) -> Floats:
    """d * (2 s + 1) / 2^shift, exact in float32."""
    return halves(blocks, 0) * (2 * scales.astype(np.float32) + 1) * np.float32(2.0**-shift)


def _even_signs(words: NDArray[np.uint32]) -> Bytes:
    """The four sign bytes of each word. (n, words) -> (n, 4 * words)."""
    return _with_parity((words[..., None] >> _SIGN_FIELDS & 127).astype(np.uint8)).reshape(len(words), -1)


def _with_parity(signs: Bytes) -> Bytes:
    """Seven signs, and the eighth that makes the number of negative ones even."""
    folded = signs ^ signs >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return (signs | (folded & 1) << 7).astype(np.uint8)


def _signed(points: NDArray[np.int8], signs: Bytes) -> NDArray[np.int8]:
    """points (n, groups, 8), signs (n, groups) with a bit a weight -> (n, 8 * groups)."""
    negative = (signs[..., None] >> _BITS & 1).view(np.int8)
    q = (points ^ -negative) + negative
    return q.reshape(len(points), -1)


def _directions(bits: NDArray[Any]) -> NDArray[np.int8]:
    return np.where(bits != 0, np.int8(-1), np.int8(1))
