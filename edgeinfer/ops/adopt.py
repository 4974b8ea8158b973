"""Blocks of a mapped file as an MLX array: the same memory where MLX can share it, a copy elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

PAGE = 16384
"""Bytes to which Metal wants shared memory aligned."""
WORD = 4


@dataclass
class Tally:
    """Bytes of weights taken over since the process started, and why the first copy was made."""

    shared: int = 0
    copied: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if not self.copied:
            return f"{self.shared} bytes used where they lie in the file, none copied"
        return f"{self.shared} bytes used where they lie in the file, {self.copied} copied ({self.reason})"


tally = Tally()


def adopt(blocks: NDArray[np.uint8]) -> mx.array:
    """(rows, bytes per row) uint8, the same bytes. Counted in ``tally``."""
    try:
        array = _shared(blocks)
    except (ValueError, RuntimeError) as error:
        tally.copied += blocks.nbytes
        tally.reason = tally.reason or str(error)
        return mx.array(blocks)
    tally.shared += blocks.nbytes
    return array


def _shared(blocks: NDArray[np.uint8]) -> mx.array:
    """A view of the pages of the file that hold the blocks. Raises ValueError or RuntimeError where there is none."""
    mapping = _mapping(blocks)
    everything = np.frombuffer(mapping, np.uint8)
    offset = blocks.ctypes.data - everything.ctypes.data
    if offset % WORD:
        raise ValueError(f"blocks at byte {offset} of the file; kernels read words of {WORD}")
    first = offset // PAGE * PAGE
    last = min(-(-(offset + blocks.nbytes) // PAGE) * PAGE, len(everything))
    window = mx.asarray(everything[first:last], copy=False)
    start = offset - first
    return window[start : start + blocks.nbytes].reshape(blocks.shape)


def _mapping(blocks: NDArray[np.uint8]) -> mmap:
    base: object = blocks
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap) or not blocks.flags.c_contiguous:
        raise ValueError("not blocks of a mapped file")
    return base
