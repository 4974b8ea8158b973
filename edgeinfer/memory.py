"""The machine's memory: how much a model may take, and giving back what it took."""

from __future__ import annotations

import ctypes
import gc
import sys

import psutil


def free_memory() -> int:
    """Bytes that this process may still take: what is free, and no more than its own limit (``ulimit -v``)."""
    free = int(psutil.virtual_memory().available)
    if sys.platform == "win32":
        return free
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    return max(0, min(free, limit - int(psutil.Process().memory_info().vms)))


def hand_back_memory() -> None:
    """Returns freed memory to the system: glibc keeps what lies between blocks that are still in use."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
