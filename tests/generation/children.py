"""Programs for a child process: a tape that dies, hangs or runs out of memory when a prompt tells it to."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation.child import serve
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.heartbeat import Output, Pulse
from tests.batch.taped import Tokens, echo
from tests.generation.fakes import LETTERS

PROGRAM = "from tests.generation.children import main; main(*link, *arguments)"


def spin() -> None:
    until = time.monotonic() + 4
    while time.monotonic() < until:
        pass


def die_speaking() -> None:
    os.write(2, b"\n[METAL] Command buffer execution failed: Insufficient Memory\x1b[2J\n")
    os.kill(os.getpid(), signal.SIGABRT)


FAULTS: dict[str, Any] = {
    "!": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "#": die_speaking,
    "$": lambda: time.sleep(1000),
    "%": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "&": spin,
    "~": lambda: os._exit(0),
}


class Fragile(TapeBackend):
    """Does what the last letter of a prompt says, once, as soon as it is fed."""

    def step(self, chunks: Sequence[Chunk]) -> Any:
        for chunk in chunks:
            for token in chunk.tokens:
                letter = LETTERS[token].decode()
                if letter == "^":
                    raise MemoryError("bad_alloc")
                if letter in FAULTS:
                    FAULTS[letter]()
        return super().step(chunks)


def main(output: Output, pulse: Pulse, when: str = "", delay: str = "0") -> None:
    """``when`` "load" dies and "stall" hangs while loading; ``delay`` is what a step takes."""
    tokenizer: Any = Tokens()

    def open_backend() -> Fragile:
        print("native noise on stdout", flush=True)
        if when == "load":
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "stall":
            time.sleep(1000)
        return Fragile(echo, vocab_size=len(LETTERS), delays=float(delay))

    assert threading.current_thread() is threading.main_thread()
    assert sys.flags.safe_path
    serve(lambda: Engine(open_backend, tokenizer, None, pulse), output)
