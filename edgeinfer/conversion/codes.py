"""Stored codes from GGUF's blocks to MLX's packed words and back, where both formats have them.

MLX's affine weights are ``scale * q + bias`` with q from 0; ggml's symmetric formats subtract a constant from q, which
becomes the bias. K-quants of groups of 32 keep their codes too, but their scales, products of a float16 and an integer,
are rounded to float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.affine import pack_bits, unpack_bits
from edgeinfer.quant.codec import CODECS, Codec
from edgeinfer.quant.kquants import BITS, NIBBLES, fields, scales_and_minimums
from edgeinfer.quant.legacy import fifth_bits, nibbles
from edgeinfer.quant.plain import halves

Blocks: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = tuple[Blocks, NDArray[np.float32], NDArray[np.float32]]
"""q (n, group), scales and biases (n, groups of a block)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How MLX stores a matrix."""

    name: str
    bits: int
    group: int

    def settings(self) -> dict[str, Any]:
        return {"group_size": self.group, "bits": self.bits, "mode": self.name}


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix as MLX has it: ``words`` (rows, words) uint32, scales and biases (rows, groups).

    Shared exponents are uint8 and have no biases.
    """

    mode: Mode
    words: NDArray[np.uint32]
    scales: NDArray[Any]
    biases: NDArray[np.float16] | None
    exact: bool


def _symmetric(q: Blocks, blocks: Blocks, zero: int) -> Parts:
    scales = halves(blocks, 0)
    return q, scales, scales * np.float32(-zero)


def _k_quant(q: Blocks, blocks: Blocks) -> Parts:
    scales, minimums = scales_and_minimums(blocks)
    return q, scales, -minimums


def _q5_k(blocks: Blocks) -> Parts:
    fifth = fields(blocks[:, 16:48], 32, BITS, 1)
    fifth <<= 4
    return _k_quant(fields(blocks[:, 48:], 32, NIBBLES, 15) | fifth, blocks)


_AFFINE: Mapping[str, tuple[int, Callable[[Blocks], Parts]]] = {
    "q4_0": (4, lambda blocks: _symmetric(nibbles(blocks[:, 2:]), blocks, 8)),
    "q4_1": (4, lambda blocks: (nibbles(blocks[:, 4:]), halves(blocks, 0), halves(blocks, 2))),
    "q5_0": (5, lambda blocks: _symmetric(nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]), blocks, 16)),
    "q5_1": (
        5, lambda blocks: (nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]), halves(blocks, 0), halves(blocks, 2)),
    ),
    "q8_0": (8, lambda blocks: _symmetric(blocks[:, 2:] ^ np.uint8(128), blocks, 128)),
    "q4_k": (4, lambda blocks: _k_quant(fields(blocks[:, 16:], 32, NIBBLES, 15), blocks)),
    "q5_k": (5, _q5_k),
}  # fmt: skip
"""Bits, and how a block is taken apart."""


def mode_of(codec: Codec) -> Mode | None:
    """What MLX would store a codec's matrix as; None where it has no such codes."""
    if codec.name in _AFFINE:
        return Mode("affine", _AFFINE[codec.name][0], 32)
    return {"mxfp4": Mode("mxfp4", 4, 32), "nvfp4": Mode("nvfp4", 4, 16)}.get(codec.name)


def to_mlx(codec: Codec, rows: Blocks) -> Packed | None:
    """Rows of blocks (rows, bytes) as MLX's tensors; None where no codes map, or a scale leaves float16's range."""
    mode = mode_of(codec)
    if mode is None:
        return None
    blocks = np.ascontiguousarray(rows).reshape(-1, codec.bytes)
    if mode.name != "affine":
        q, exponents = (_from_mxfp4 if mode.name == "mxfp4" else _from_nvfp4)(blocks)
        return Packed(mode, _words(q, rows, 4), exponents.reshape(len(rows), -1), None, True)
    with np.errstate(all="ignore"):
        q, scales, biases = _AFFINE[codec.name][1](blocks)
        near, offset = (each.astype(np.float16).reshape(len(rows), -1) for each in (scales, biases))
    if not (np.isfinite(near).all() and np.isfinite(offset).all()):
        return None
    exact = all(np.array_equal(a.reshape(-1), b.reshape(-1)) for a, b in ((near, scales), (offset, biases)))
    return Packed(mode, _words(q, rows, mode.bits), near, offset, exact)


def to_gguf(codec: Codec, rows: Blocks) -> tuple[Codec, Blocks] | None:
    """Rows of an ``affine`` codec in a format of GGUF, to the bit; None where it has none that holds them.

    2 and 3 bits become 4, since the formats of ggml with fewer have no float offset.
    """
    bits = _affine_bits(codec)
    if bits not in (2, 3, 4, 5, 8):
        return None
    blocks = np.ascontiguousarray(rows).reshape(-1, codec.bytes)
    numbers = np.ascontiguousarray(blocks[:, :8]).view("<f4")
    q = unpack_bits(blocks[:, 8:], bits).reshape(-1, 32)
    scales, offsets = (np.repeat(numbers[:, i], codec.weights // 32) for i in (0, 1))
    with np.errstate(over="ignore"):
        half = np.stack([scales, offsets], axis=1).astype("<f2")
    if not np.array_equal(half[:, 0], scales):
        return None
    zero = 16 if bits == 5 else 128 if bits == 8 else 8
    if bits >= 4 and np.array_equal(offsets, scales * np.float32(-zero)):
        name, head = f"q{bits}_0", np.ascontiguousarray(half[:, :1])
    elif bits < 8 and np.array_equal(half[:, 1], offsets):
        name, head = f"q{max(bits, 4)}_1", half
    else:
        return None
    parts = [head.view(np.uint8)]
    if bits == 8:
        parts.append(q ^ np.uint8(128))
    else:
        parts += [np.packbits(q >> 4, axis=1, bitorder="little")] * (bits == 5)
        parts.append(q[:, :16] & np.uint8(15) | q[:, 16:] << np.uint8(4))
    return CODECS[name], np.concatenate(parts, axis=1).reshape(len(rows), -1)


def _affine_bits(codec: Codec) -> int:
    return int(codec.name[6]) if codec.family == "affine" else 0


def _words(q: Blocks, rows: Blocks, bits: int) -> NDArray[np.uint32]:
    return np.ascontiguousarray(pack_bits(q.reshape(len(rows), -1), bits)).view(np.uint32)


def _from_mxfp4(blocks: Blocks) -> tuple[Blocks, Blocks]:
    """(n, 17): an exponent, nibbles of both halves -> q (n, 32), exponents (n, 1)."""
    return nibbles(blocks[:, 1:]), blocks[:, :1]


def _from_nvfp4(blocks: Blocks) -> tuple[Blocks, Blocks]:
    """(n, 36): four scales, per 16 weights the nibbles of both halves -> q (n, 64), scales (n, 4)."""
    return nibbles(blocks[:, 4:].reshape(-1, 8)).reshape(len(blocks), 64), blocks[:, :4]
