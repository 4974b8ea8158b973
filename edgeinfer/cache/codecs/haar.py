"""Fixed random matrices: the same on every machine and with every version of numpy."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray


@cache
def gaussian(size: int, seed: int) -> NDArray[np.float32]:
    """(size, size) of independent standard normals. ``RandomState`` is the generator that numpy has frozen."""
    return np.random.RandomState(seed).standard_normal((size, size)).astype(np.float32)


@cache
def rotation(size: int, seed: int) -> NDArray[np.float32]:
    """(size, size): an orthogonal matrix drawn evenly from all of them, by QR of a Gaussian one (Mezzadri, 2007)."""
    q, r = np.linalg.qr(np.random.RandomState(seed).standard_normal((size, size)))
    turned: NDArray[np.float32] = (q * np.sign(np.diagonal(r))).astype(np.float32)
    return turned
