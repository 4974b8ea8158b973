"""How fast this machine reads memory, and the speed of decoding that follows from it.

Decoding one sequence reads every weight once a token, so that bytes over bandwidth is the time of a token, but for what
each layer costs beside it. Measured on two Zen 4 cores at 34 GB/s: 98 MB of SmolLM2-135M in Q4_1 forecast 206, decoded
186 to 203 tokens/s; 253 MB of Gemma-3-270M in Q4_K_M forecast 107, decoded 105 to 126.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

_BYTES = 256 << 20  # read at once: more than any cache holds
_SECONDS = 1.0  # after which the probe ends
_PASSES = 8
_LEAST_PASSES = 2  # the first one alone says little
_BUSY = 0.7  # processes a core that wanted to run over the last minute
_OVERHEAD = 0.002  # seconds of a token that are not spent on weights


def forecast(weight_bytes: int, bandwidth: float) -> float:
    """Tokens a second of plain decoding at a short context. A forecast: `edgeinfer bench` measures."""
    return 1 / (weight_bytes / bandwidth + _OVERHEAD)


def bandwidth(folder: Path) -> float:
    """Bytes a second: what was measured on this machine before and kept in ``folder``, or measured now.

    A figure is not kept where other programs were busy meanwhile, with less left for this one.
    """
    file, machine = folder / "bandwidth.json", _machine()
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["machine"] == machine and 1e8 < float(kept["bytes_per_second"]) < 1e14:
            return float(kept["bytes_per_second"])
    busy = psutil.getloadavg()[0] > (psutil.cpu_count(logical=False) or 1) * _BUSY
    found = measure()
    with suppress(OSError):  # the figure is as good where it cannot be kept
        if busy:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": machine, "bytes_per_second": round(found)}), encoding="utf-8")
    return found


def measure() -> float:
    """Bytes a second, the best of a few passes: by the GPU that MLX would use, else by every physical core."""
    import mlx.core as mx
    import numpy as np

    size = min(_BYTES, int(psutil.virtual_memory().available) // 8)
    if mx.default_device() == mx.Device(mx.gpu):
        whole = mx.ones((size // 4,), dtype=mx.float32)
        mx.eval(whole)
        return size / _best(lambda: mx.eval(mx.max(whole)))
    cores = psutil.cpu_count(logical=False) or 1
    parts = np.array_split(np.ones(size // 8, dtype=np.uint64), cores)
    with ThreadPoolExecutor(cores) as pool:
        return size / _best(lambda: list(pool.map(np.max, parts)))


def _best(run: Callable[[], object]) -> float:
    fastest, until = float("inf"), time.perf_counter() + _SECONDS
    for number in range(_PASSES):
        started = time.perf_counter()
        run()
        fastest = min(fastest, time.perf_counter() - started)
        if number >= _LEAST_PASSES and time.perf_counter() > until:
            break
    return fastest


def _machine() -> str:
    """Another machine, or one with other memory, is measured anew."""
    memory = psutil.virtual_memory().total
    return f"{platform.node()} {platform.machine()} {psutil.cpu_count(logical=False)} {memory}"
