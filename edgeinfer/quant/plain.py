"""Formats without blocks: one stored number a weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def decode_f32(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 4) -> (n, 1); a copy, since a view would break when the file it is mapped from shrinks."""
    return blocks.view("<f4").astype(np.float32)


def decode_f16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2) -> (n, 1)."""
    return halves(blocks, 0)


def decode_bf16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2) -> (n, 1). A bfloat16 is the upper half of a float32."""
    bits = blocks.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def halves(blocks: NDArray[np.uint8], start: int, count: int = 1) -> NDArray[np.float32]:
    """The ``count`` float16 numbers at byte ``start`` of each block. (n, bytes) -> (n, count)."""
    return blocks[:, start : start + 2 * count].view("<f2").astype(np.float32)
