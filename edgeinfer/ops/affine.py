"""The codecs whose blocks are MLX's affine format in another order, rearranged without losing a bit.

MLX stores a weight as ``scale * q + bias`` over groups of 32, with the q of a row as one little-endian bit string. A
legacy block is such a group, its scale and bias exact in float16; a sub-block of Q4_K or Q5_K too, but its scale is a
float16 times a 6-bit number, which only float32 holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.ops.weights import PackedWeight
from edgeinfer.quant.kquants import BITS, NIBBLES, fields, scales_and_minimums
from edgeinfer.quant.legacy import fifth_bits, nibbles

Bytes: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = tuple[Bytes, NDArray[Any], NDArray[Any]]
"""q (n, 32 * groups) and the scale and bias of each group (n, groups)."""

GROUP = 32


@dataclass(frozen=True, slots=True)
class Form:
    """A codec as affine: bits of a q, bits of a group's scale and of its bias, and what takes blocks apart."""

    bits: int
    scale_bits: int
    split: Callable[[Bytes], Parts]


@dataclass(frozen=True, slots=True)
class Grouped:
    """packed: (rows, columns * bits / 32) uint32; scales, biases: (rows, columns / 32)."""

    packed: NDArray[np.uint32]
    scales: NDArray[Any]
    biases: NDArray[Any]
    bits: int


def pack(weight: PackedWeight) -> Grouped:
    """The affine form of a weight whose codec is in ``CODECS``."""
    rows, columns = weight.shape
    form = CODECS[weight.codec.name]
    bits = form.bits
    q, scales, biases = form.split(weight.blocks.reshape(-1, weight.codec.bytes))
    packed = _bit_string(q, bits).view("<u4").reshape(rows, columns * bits // 32)
    return Grouped(packed, scales.reshape(rows, -1), biases.reshape(rows, -1), bits)


def _bit_string(q: Bytes, bits: int) -> Bytes:
    """The low ``bits`` bits of each q, one after the other. (n, weights) -> (n * weights * bits / 8,)."""
    if bits == 8:
        return np.ascontiguousarray(q).reshape(-1)
    if bits == 4:
        pairs = q.reshape(-1, 2)
        high: Bytes = np.left_shift(pairs[:, 1], np.uint8(4))
        return pairs[:, 0] | high
    single = np.unpackbits(q.reshape(-1, 1), axis=1, bitorder="little", count=bits)
    return np.packbits(single.reshape(-1), bitorder="little")


def _half(blocks: Bytes, start: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")


def _q4_0(blocks: Bytes) -> Parts:
    scale = _half(blocks, 0)
    return nibbles(blocks[:, 2:]), scale, scale * np.float16(-8)


def _q4_1(blocks: Bytes) -> Parts:
    return nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    scale = _half(blocks, 0)
    return nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]), scale, scale * np.float16(-16)


def _q5_1(blocks: Bytes) -> Parts:
    return nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    scale = _half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scale, scale * np.float16(-128)


def _q4_k(blocks: Bytes) -> Parts:
    scales, minimums = scales_and_minimums(blocks)
    return fields(blocks[:, 16:], 32, NIBBLES, 15), scales, -minimums


def _q5_k(blocks: Bytes) -> Parts:
    scales, minimums = scales_and_minimums(blocks)
    fifth: Bytes = np.left_shift(fields(blocks[:, 16:48], 32, BITS, 1), np.uint8(4))
    return fields(blocks[:, 48:], 32, NIBBLES, 15) | fifth, scales, -minimums


CODECS: dict[str, Form] = {
    "q4_0": Form(4, 16, _q4_0),
    "q4_1": Form(4, 16, _q4_1),
    "q5_0": Form(5, 16, _q5_0),
    "q5_1": Form(5, 16, _q5_1),
    "q8_0": Form(8, 16, _q8_0),
    "q4_k": Form(4, 32, _q4_k),
    "q5_k": Form(5, 32, _q5_k),
}
