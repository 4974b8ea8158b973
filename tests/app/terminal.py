"""A real pseudo-terminal, read as a terminal reads it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte

ROOT = Path(__file__).parents[2]


class Terminal:
    """A program in a terminal of its own: ``raw`` holds every byte that it wrote, ``lines`` what one sees."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None
    ) -> None:
        columns, rows = size
        self.raw = b""
        self.shown = True  # what is read is brought onto the screen, which takes its time
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})},
        )
        os.close(slave)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, text: str) -> None:
        """Returns when all was taken; what the program writes meanwhile is read."""
        data = text.encode()
        while data:
            if select.select([], [self._master], [], 0.05)[1]:
                data = data[os.write(self._master, data[:1024]) :]
            if len(data) > 1024:
                self.read(0)

    def read(self, seconds: float) -> bool:
        """Takes in what comes within some time; False where nothing did."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the other end is gone
            return False
        self.raw += data
        if self.shown:
            self._stream.feed(data)
        return bool(data)

    def until(self, condition: Callable[[], object], seconds: float = 240) -> float:
        """Reads until something is seen. Returns the seconds that took; raises AssertionError with the screen."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > seconds:
                raise AssertionError(f"it did not come:\n{self.text}")
            self.read(0.05)
        return time.monotonic() - start

    def kill(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = 30) -> int:
        """The exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        return self.process.wait(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def app_on_tape(store: Path, reply: str = "echo", delay: float = 0.0, *options: str) -> list[str]:
    """The command line of the app with a tape for a model; ``inline`` keeps it below the shell's prompt."""
    return [sys.executable, "-m", "tests.app.terminal", str(store), reply, str(delay), *options]


ESCAPES = "\x1b[31mred\x1b]0;title\x07\x1b]52;c;aGk=\x07 \x9b2J \x00 \x7f \r back"
MARKDOWN = (
    "## A heading\n\nSome *words* of **text** with `code`, and a list:\n\n- one\n- two\n\n"
    "```python\ndef f(x):\n    return x + 1\n```\n\n"
)


def main(store: str, reply: str, delay: str, *options: str) -> None:
    from edgeinfer.app.app import ChatApp, Options
    from edgeinfer.app.conversations import Conversations
    from edgeinfer.app.engine import Wanted
    from tests.app.world import opener

    with Conversations.open(Path(store)) as opened:
        if reply.startswith("here:"):  # in this process, which starts sooner
            model = opener(REPLIES[reply.removeprefix("here:")], delays=float(delay), context=1 << 17)
        else:
            model = isolated(reply, delay)
        ChatApp(opened, Options(Wanted("tape")), model).run(inline="inline" in options)


def isolated(reply: str, delay: str) -> Any:
    """An opener of a tape in a process of its own, as the app runs its models."""

    def open_tape(wanted: object, on_progress: object) -> Any:
        from edgeinfer.backends import Choice
        from edgeinfer.generation.isolated import IsolatedEngine
        from edgeinfer.llm import LLM
        from tests.app.world import ByteTokenizer, TurnTemplate

        tokenizer: Any = ByteTokenizer()
        template: Any = TurnTemplate()
        engine = IsolatedEngine([reply, delay], "from tests.app.terminal import serve; serve(*link, *arguments)")
        return LLM("tape", Choice("tape", "a test"), engine, tokenizer, template)

    return open_tape


REPLIES: dict[str, Callable[[str], str]] = {
    "echo": lambda asked: asked,
    "markdown": lambda asked: MARKDOWN,
    "short": lambda asked: "yes",
    "long": lambda asked: MARKDOWN * 200,
    "hostile": lambda asked: ESCAPES,
}


def logged(played: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], int]:
    """Writes down when how many tokens there were: before a kill, so that nothing of it is lost."""
    file = open(os.environ["TAPE_LOG"], "a", buffering=1)  # noqa: SIM115  # until the process ends

    def next_token(history: Sequence[int]) -> int:
        file.write(f"{time.time()} {len(history)}\n")
        return played(history)

    return next_token


def serve(output: Any, pulse: Any, reply: str, delay: str) -> None:
    """The far end: the tape."""
    from edgeinfer.backends.tape import TapeBackend
    from edgeinfer.generation import child
    from edgeinfer.generation.engine import Engine
    from tests.app.world import BYTES, ByteTokenizer, tape

    tokenizer: Any = ByteTokenizer()
    played = logged(tape(REPLIES[reply])) if "TAPE_LOG" in os.environ else tape(REPLIES[reply])
    backend = partial(TapeBackend, played, vocab_size=len(BYTES), context=1 << 17, delays=float(delay))
    child.serve(lambda: Engine(backend, tokenizer, None, pulse), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
