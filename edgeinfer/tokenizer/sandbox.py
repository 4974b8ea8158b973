"""Where chat templates run: one child process, started when it is first needed, killed when it misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from edgeinfer.errors import EngineClosed, TemplateFailed

MAX_SOURCE = 1 << 20  # bytes
MAX_REQUEST = 64 << 20  # bytes of source and variables; eight times what may come out
MAX_SECONDS = 2.0  # compiling included
MAX_MEMORY = 256 << 20  # bytes above those of an idle child
_START_SECONDS = 30.0
_GRACE_SECONDS = 0.4  # the child's own clock comes first: it knows the line
_POLL_SECONDS = 0.02

# Isolated mode and no site: neither PYTHONPATH, nor the current folder, nor .pth files reach the child, so that the
# folders it needs are named. An editable install and a user's script without a main guard both work.
_BOOTSTRAP = (
    "import sys; arguments, sys.path[len(sys.path):] = sys.argv[1:4], sys.argv[4:]; "
    "from edgeinfer.tokenizer.renderer import main; main(*arguments)"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What became of one mapping of variables: a text, or the error that a template raised."""

    text: str = ""
    error: TemplateFailed | None = None

    def unwrap(self) -> str:
        if self.error is not None:
            raise self.error
        return self.text


class Sandbox:
    """Renders templates in a child process. Safe to use from several threads; a failed render costs nothing else."""

    def __init__(self, seconds: float = MAX_SECONDS, memory: int = MAX_MEMORY, capped: bool = True) -> None:
        """``capped`` False does not ask the system to cap the child's memory: the parent watches it, as on macOS."""
        self._seconds = seconds
        self._memory = memory
        self._capped = capped
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def render(self, source: str, variables: Sequence[Mapping[str, Any]], name: str) -> list[Rendered]:
        """One result for each mapping of variables, all within one time limit.

        Errors are TemplateFailed with ``name``, the template's line where it is known, and what went wrong. Those of
        the template itself are results; one that exceeds a limit is raised and ends the child.
        """
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE:
            raise TemplateFailed(f"{name} is {size} bytes long; the limit is {MAX_SOURCE}")
        message = json.dumps({"source": source, "variables": list(variables)}, ensure_ascii=False)
        request = message.encode("utf-8", "surrogatepass") + b"\n"
        if len(request) > MAX_REQUEST:
            raise TemplateFailed(f"{name}: the conversation is {len(request)} bytes long; the limit is {MAX_REQUEST}")
        with self._lock:
            if self._closed:
                raise EngineClosed(f"{name} was used after close()")
            used = self._child is not None and self._child.alive
            try:
                reply = self._ask(request, name)
            except _Ended:
                if not used:
                    raise
                reply = self._ask(request, name)  # someone ended the child while it waited
            if reply["results"][-1].get("limit"):
                self._stop()
                raise _failure(reply["results"][-1], name)
        return [
            Rendered(text=result["text"]) if "text" in result else Rendered(error=_failure(result, name))
            for result in reply["results"]
        ]

    def close(self) -> None:
        """Ends the child process, at once."""
        with self._lock:
            self._closed = True
            self._stop()

    def _ask(self, request: bytes, name: str) -> dict[str, Any]:
        if self._child is None or not self._child.alive:
            self._stop()
            self._child = _Child(self._seconds, self._memory, self._capped, name)
        try:
            return self._child.ask(request, name)
        except BaseException:  # a reply that was not read would answer the next request
            self._stop()
            raise

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


def _failure(result: Mapping[str, Any], name: str) -> TemplateFailed:
    place = f", line {result['line']}" if result["line"] else ""
    problem = "exceeded a limit: " if result["limit"] else ""
    return TemplateFailed(f"{name}{place}: {problem}{' '.join(result['error'].split())}")


class _Ended(TemplateFailed):
    """The child was gone before it replied."""


class _Child:
    """One running child and its pipes."""

    def __init__(self, seconds: float, memory: int, capped: bool, name: str) -> None:
        self._seconds = seconds
        self._memory = memory
        command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(seconds), str(memory), "01"[capped]]
        self._process = subprocess.Popen(
            [*command, *_import_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        self.stop = weakref.finalize(self, _end, self._process)
        self._watched: psutil.Process | None = None
        self._baseline = 0
        hello = self._read(_START_SECONDS, name)
        if not hello["capped"]:
            self._watched = psutil.Process(self._process.pid)
            self._baseline = self._watched.memory_info().rss

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, name: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        deadline = self._seconds + _GRACE_SECONDS
        with contextlib.suppress(BrokenPipeError):  # reading tells what happened
            view = memoryview(request)
            while view:
                view = view[self._process.stdin.write(view) :]
        return self._read(deadline, name)

    def _read(self, seconds: float, name: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            self._check_memory(name)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TemplateFailed(f"{name}: exceeded a limit: more than {self._seconds:g} s")
            wait = left if self._watched is None else min(left, _POLL_SECONDS)
            if not poll.poll(wait * 1000):
                continue
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                raise _Ended(f"{name}: the process that renders it ended ({self._ending()})")
            pieces.append(piece)
        reply: dict[str, Any] = json.loads(b"".join(pieces).decode("utf-8", "surrogatepass"))
        return reply

    def _check_memory(self, name: str) -> None:
        if self._watched is None:
            return
        with contextlib.suppress(psutil.Error):  # it has just ended
            if self._watched.memory_info().rss > self._baseline + self._memory:
                raise TemplateFailed(f"{name}: exceeded a limit: more than {self._memory >> 20} MiB of memory")

    def _ending(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _import_folders() -> list[str]:
    """The folders that hold the packages which the child imports."""
    folders: dict[str, None] = {}
    for package in ("edgeinfer", "jinja2", "markupsafe"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise TemplateFailed(f"chat templates need the package {package}, which is not installed here")
        folders[str(Path(spec.origin).parent.parent)] = None
    return list(folders)
