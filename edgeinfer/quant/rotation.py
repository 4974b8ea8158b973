"""The signs of the rotation that keys and values go through before they are sealed."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray


@cache
def signs(head_size: int) -> NDArray[np.float32]:
    """(D,) of ±1, the top bits of a linear congruential generator (Knuth's MMIX)."""
    state, found = 1, np.empty(head_size, np.float32)
    for i in range(head_size):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found[i] = 1 if state >> 63 else -1
    return found
