"""Codes of any width as bytes, and scales as float16: what the codecs' rows are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST_HALF = 65504.0


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that ``count`` codes take."""
    return -(-count * bits // 8)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The low ``bits`` of each code, the first code in the lowest bits. (n, count) -> (n, packed_bytes)."""
    if bits == 8:
        return codes
    flat = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(flat.reshape(len(codes), -1), axis=-1, bitorder="little")


def unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """The inverse of ``pack``. (n, packed_bytes) -> (n, count)."""
    if bits == 8:
        return packed[:, :count]
    flat = np.unpackbits(packed, axis=-1, count=count * bits, bitorder="little")
    return np.packbits(flat.reshape(len(packed), count, bits), axis=-1, bitorder="little")[..., 0]


def halves_to_bytes(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float16, little-endian; what is larger becomes the largest finite one. (n, count) -> (n, 2 * count)."""
    cut = np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype("<f2")
    return np.ascontiguousarray(cut).view(np.uint8)


def bytes_to_halves(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The inverse of ``halves_to_bytes``. (n, 2 * count) -> (n, count)."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def padded(rows: NDArray[np.float32], multiple: int) -> NDArray[np.float32]:
    """Rows of (n, head) with zeros behind them, up to a multiple of a block's size."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % multiple)))
