"""Prints what the app takes: seconds to a usable prompt, and milliseconds to the echo of a key while a reply streams.

python -m tests.app.measure
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.app.terminal import Terminal, app_on_tape


def startup(command: list[str]) -> float:
    """Seconds from the start of the process to the echo of a key that was typed at once."""
    with Terminal(command, (120, 40)) as terminal:
        terminal.shown = False
        terminal.type("QjX")
        terminal.until(lambda: b"QjX" in terminal.raw.partition(b"?1049h")[2])
        return time.monotonic() - terminal.started


def echoed(terminal: Terminal, start: int, typed: bytes) -> bool:
    return typed in terminal.raw[start:]


def echoes(command: list[str], keys: int = 60) -> list[float]:
    """Seconds from each key to its echo, while a reply is streamed."""
    times = []
    with Terminal(command, (120, 40)) as terminal:
        terminal.until(lambda: "tape none" in terminal.text)
        terminal.type("go\r")
        terminal.until(lambda: "heading" in terminal.text)
        typed, terminal.shown = "", False
        for number in range(keys):
            typed += "abcdefghij"[number % 10]
            terminal.type(typed[-1])
            times.append(terminal.until(partial(echoed, terminal, len(terminal.raw), typed.encode())))
            end = time.monotonic() + 0.06
            while time.monotonic() < end:
                terminal.read(0.01)
    return sorted(times)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "chats.db"
        starts = sorted(startup([sys.executable, "-m", "edgeinfer", "chat"]) for _ in range(5))
        print(f"usable prompt after {starts[2] * 1000:.0f} ms (median of 5, {starts[0] * 1000:.0f} the least)")
        times = echoes(app_on_tape(store, "long", 0.0045))
        p95 = times[int(0.95 * len(times))]
        print(f"key echo while streaming: median {times[len(times) // 2] * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms")
