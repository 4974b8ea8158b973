"""Which window writes a reply: told by its process, so that what a killed one left can be recognised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def this_process() -> str:
    """This process, and when it began: a number that is given out again is another process."""
    import psutil  # takes a while, and nobody needs it before something is said

    return _named(psutil.Process(os.getpid()))


def gone(owner: str) -> bool:
    """Whether the process has ended."""
    import psutil

    number, _, _ = owner.partition(":")
    try:
        return not number.isascii() or not number.isdigit() or _named(psutil.Process(int(number))) != owner
    except (psutil.Error, OverflowError):
        return True


def _named(process: psutil.Process) -> str:
    return f"{process.pid}:{process.create_time():.2f}"
