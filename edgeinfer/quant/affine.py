"""Groups of 32, 64 or 128 weights ``scale * q + offset``, both float32, the q of 2 to 8 bits one after the other.

Not a format of any file: what the weights of MLX, AWQ, GPTQ and compressed-tensors folders are rearranged to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.codec import AFFINE_BITS, AFFINE_GROUPS
from edgeinfer.quant.legacy import scaled


def blocks_of(q: NDArray[np.uint8], scales: NDArray[Any], offsets: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """q (rows, columns), scales and offsets (rows, groups) -> (rows, bytes of a row) uint8."""
    rows, groups = scales.shape
    packed = pack_bits(q.reshape(rows * groups, -1), bits)
    numbers = np.stack([scales, offsets], axis=-1).astype("<f4").reshape(rows * groups, 2)
    return np.concatenate([numbers.view(np.uint8), packed], axis=1).reshape(rows, -1)


def pack_bits(q: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The low ``bits`` of each q, the first lowest. (n, weights) -> (n, weights * bits / 8)."""
    if bits == 8:
        return np.ascontiguousarray(q)
    if bits == 4:
        return (q[:, ::2] & np.uint8(15)) | (q[:, 1::2] << np.uint8(4))
    single = np.unpackbits(np.ascontiguousarray(q)[..., None], axis=-1, bitorder="little", count=bits)
    return np.packbits(single.reshape(len(q), -1), axis=-1, bitorder="little")


def unpack_bits(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """(n, bytes) -> (n, bytes * 8 / bits)."""
    if bits == 8:
        return packed
    if bits == 4:
        return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1)
    single = np.unpackbits(packed, axis=-1, bitorder="little").reshape(len(packed), -1, bits)
    return np.packbits(single, axis=-1, bitorder="little")[..., 0]


def _decoder(bits: int) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        numbers = np.ascontiguousarray(blocks[:, :8]).view("<f4")
        weights = scaled(unpack_bits(blocks[:, 8:], bits), numbers[:, :1])
        weights += numbers[:, 1:]
        return weights

    return decode


globals().update({f"decode_affine{bits}_{group}": _decoder(bits) for bits in AFFINE_BITS for group in AFFINE_GROUPS})
