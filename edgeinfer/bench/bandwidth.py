"""How fast this machine's processor reads memory: what a step that reads all weights cannot beat on a CPU."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 256 << 20  # beyond any cache
_TIMES = 5


def read_bandwidth(threads: int) -> float:
    """Bytes a second that ``threads`` read together: the best of five sums over an array that no cache holds."""
    numbers = np.ones(_BYTES // 8, np.int64)
    parts = np.array_split(numbers, max(1, threads))
    best = float("inf")
    with ThreadPoolExecutor(len(parts)) as pool:
        for _ in range(_TIMES):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - started)
    return numbers.nbytes / best
