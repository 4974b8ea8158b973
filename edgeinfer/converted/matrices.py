"""Matrices of a checkpoint as blocks of a codec, and what all schemes of quantization build on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.folder import Folder
from edgeinfer.quant.affine import blocks_of
from edgeinfer.quant.codec import AFFINE_GROUPS, CODECS, Codec

Blocks: TypeAlias = NDArray[np.uint8]
PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of a checkpoint: (rows, columns), or with experts (E, rows, columns). ``make`` gives (rows, bytes)."""

    codec: Codec
    shape: tuple[int, ...]
    make: Callable[[], Blocks]


class Refusal(Exception):
    """A message that lacks the name of the tensor."""


Parts: TypeAlias = tuple[Blocks, NDArray[Any], NDArray[Any]]
"""q (rows, columns), scales and offsets (rows, groups)."""
Reader: TypeAlias = Callable[[Folder, str, Mapping[str, Any]], Matrix]
"""Folder, module name and the settings of its quantization."""


def plain(folder: Folder, name: str) -> Matrix:
    """A tensor of floats as it lies; float64 as float32."""
    info = folder.info(name)
    if info.dtype == "F64":
        return Matrix(CODECS["f32"], info.shape, lambda: as_rows(folder.floats(name), info.shape))
    if info.dtype not in PLAIN:
        raise Refusal(f"of {info.dtype} without a quantization that config.json names; supported: {', '.join(PLAIN)}")
    return Matrix(CODECS[PLAIN[info.dtype]], info.shape, lambda: as_rows(folder.raw(name), info.shape))


def affine_matrix(shape: tuple[int, ...], bits: int, group: int, parts: Callable[[], Parts]) -> Matrix:
    """The widest group of AFFINE_GROUPS that ``group`` is whole numbers of; scales and offsets are repeated."""
    width = next((each for each in reversed(AFFINE_GROUPS) if group % each == 0), 0)
    if not width:
        raise Refusal(f"groups of {group}; supported: multiples of {AFFINE_GROUPS[0]}")

    def make() -> Blocks:
        q, scales, offsets = parts()
        scales, offsets = (np.repeat(each, group // width, axis=1) for each in (scales, offsets))
        return blocks_of(q, scales, offsets, bits)

    return Matrix(CODECS[f"affine{bits}_{width}"], shape, make)


def group_order(folder: Folder, name: str, columns: int, groups: int) -> NDArray[np.int64]:
    """The group of each column where a tensor names it; empty where they follow one another."""
    found = folder.read(name).astype(np.int64) if name in folder else np.zeros(0, np.int64)
    if len(found) and (found.shape != (columns,) or found.min() < 0 or found.max() >= groups):
        raise Refusal(f"g_idx names groups that are not 0 to {groups - 1}")
    usual = len(found) and np.array_equal(found, np.arange(columns) // (columns // groups))
    return found[:0] if usual else found


def reordered(shape: tuple[int, ...], order: NDArray[np.int64], parts: Callable[[], Parts]) -> Matrix:
    """Columns that name their groups, rounded to float16."""

    def make() -> Blocks:
        q, scales, offsets = parts()
        return as_rows((q * scales[:, order] + offsets[:, order]).astype("<f2"), shape)

    return Matrix(CODECS["f16"], shape, make)


def mxfp4_blocks(q: Blocks, exponents: Blocks) -> Blocks:
    """q (rows, columns) in the order of the columns -> ggml's blocks: an exponent, nibbles of both halves."""
    halves = q.reshape(len(q), -1, 2, 16)
    nibbles = halves[:, :, 0] | halves[:, :, 1] << 4
    return np.concatenate([exponents[..., None], nibbles], axis=2).reshape(len(q), -1)


def from_e4m3(codes: Blocks) -> NDArray[np.float32]:
    """OCP's FP8 E4M3: no infinities, one NaN of each sign."""
    every = np.arange(256)
    exponent, mantissa = every >> 3 & 15, every & 7
    size = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    size[every & 127 == 127] = np.nan
    table = np.where(every < 128, size, -size).astype(np.float32)
    numbers: NDArray[np.float32] = table[codes]
    return numbers


def as_bf16(weights: NDArray[np.float32]) -> Blocks:
    """Rounded to nearest, ties to even. (..., columns) -> (rows, bytes)."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")
    rounded[np.isnan(weights)] = 0x7FC0
    return as_rows(rounded, weights.shape)


def as_rows(numbers: NDArray[Any], shape: tuple[int, ...]) -> Blocks:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(math.prod(shape[:-1]), -1)
