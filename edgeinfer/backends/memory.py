"""Giving memory back to the system, which freeing alone does not do."""

from __future__ import annotations

import ctypes
import gc
import sys


def hand_back_memory() -> None:
    """Returns freed memory to the system: glibc keeps what lies between blocks that are still in use."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
