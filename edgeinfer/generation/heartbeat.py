"""Signs of life from the process of an isolated engine, from its first moment on: little is imported here.

``begin`` is called before everything heavy, so that a slow import is not taken for a hang.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

BEAT_SECONDS = 1.0


@dataclass(slots=True)
class Pulse:
    """What the engine's thread is at, for others to look at."""

    ticks: int = 0  # steps that have ended
    working: bool = True  # inside a step, or loading


class Output:
    """Lines to the parent, from any thread, each whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._file.write(line)
                self._file.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(0)


def begin() -> tuple[Output, Pulse]:
    """Takes stdout for the parent alone (what native code prints goes to stderr) and starts to beat."""
    output, pulse = Output(os.fdopen(os.dup(1), "wb")), Pulse()
    os.dup2(2, 1)
    threading.Thread(target=_beat, args=(output, pulse), daemon=True).start()
    return output, pulse


def _beat(output: Output, pulse: Pulse) -> None:
    while True:
        output.send({"beat": pulse.ticks, "working": pulse.working, "cpu": time.process_time()})
        time.sleep(BEAT_SECONDS)
