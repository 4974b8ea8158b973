"""Logits on the host, whichever engine made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def on_host(row: Any) -> npt.NDArray[np.float32]:
    """Logits as numpy has them, float32 in the same shape."""
    if isinstance(row, np.ndarray):
        return row.astype(np.float32, copy=False)
    import mlx.core

    return np.array(row.astype(mlx.core.float32))
