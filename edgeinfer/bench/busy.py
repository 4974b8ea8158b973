"""How busy other processes keep this machine while something is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

FOREIGN_LIMIT = 0.25
"""Cores; a window in which others took more counts as disturbed."""

_STAT = Path("/proc/stat")
_COUNTED = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, and what the host gave to other guests


def busy_seconds() -> float | None:
    """Seconds that all cores together have been busy, guests of the same host included; None where nothing says."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    return sum(int(fields[index]) for index in _COUNTED) / os.sysconf("SC_CLK_TCK")


class Guard:
    """Between ``start`` and ``stop``: how many cores were kept busy by anyone but this process."""

    def __init__(
        self,
        busy: Callable[[], float | None] = busy_seconds,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._busy, self._own, self._clock = busy, own, clock
        self._before: tuple[float | None, float, float] = (None, 0.0, 0.0)

    def start(self) -> None:
        self._before = self._busy(), self._own(), self._clock()

    def stop(self) -> float | None:
        """Cores, 0 or more; None where the system does not say."""
        busy, own, clock = self._before
        after = self._busy()
        if busy is None or after is None:
            return None
        elapsed = self._clock() - clock
        return max(0.0, (after - busy - (self._own() - own)) / elapsed) if elapsed > 0 else 0.0
