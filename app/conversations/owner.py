"""Which window writes a reply: told by its process, so that what a killed one left can be recognised."""

from __future__ import annotations

import os

import psutil


def this_process() -> str:
    """This process, and when it began: a number that is given out again is another process."""
    return _named(psutil.Process(os.getpid()))


def gone(owner: str) -> bool:
    """Whether the process has ended."""
    number, _, _ = owner.partition(":")
    try:
        return not number.isascii() or not number.isdigit() or _named(psutil.Process(int(number))) != owner
    except (psutil.Error, OverflowError):
        return True


def _named(process: psutil.Process) -> str:
    return f"{process.pid}:{process.create_time():.2f}"
