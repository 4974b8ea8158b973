"""An engine in a process of its own, so that what kills or hangs it costs one reply and not the program.

It is used like ``Engine``. When the process ends, or nothing is heard of it for some seconds, its requests fail with
EngineCrashed, and the next request starts another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import psutil

from edgeinfer.backends.base import ModelInfo
from edgeinfer.errors import EdgeInferError, EngineClosed, EngineCrashed
from edgeinfer.generation.request import Request
from edgeinfer.generation.run import Outlet
from edgeinfer.generation.stream import Channel, Stream
from edgeinfer.generation.wire import pack_request, unpack_error, unpack_event, unpack_info
from edgeinfer.types import Finished, Timings, Usage

SILENT_SECONDS = 7
"""Without a sign of life, or inside one step without using the CPU, before a process on the CPU counts as hung."""
GPU_SECONDS = 60
"""Inside one step on a GPU, which leaves the CPU idle."""
BUSY_SECONDS = 600
"""Inside one step that does use the CPU."""
_IDLE = 0.01  # seconds of CPU time in a second of doing nothing
_CLOSE_SECONDS = 5.0
_READ = 1 << 16

_BOOTSTRAP = (
    "import json, sys; arguments = sys.argv[2:]; "
    "sys.path += [each for each in json.loads(sys.argv[1]) if each not in sys.path]; "
    "from edgeinfer.generation.heartbeat import begin; link = begin(); "
)
SERVE_MODEL = "from edgeinfer.generation.child import main; main(*link, *arguments)"
"""What the process runs, as Python; ``arguments`` are those given to IsolatedEngine, ``link`` leads to the parent."""


class IsolatedEngine:
    """Serves one model from a child process. Every method may be called from any thread."""

    def __init__(self, arguments: Sequence[str], program: str = SERVE_MODEL) -> None:
        """Starts the process and waits for the model; raises what loading it raises, or EngineCrashed."""
        self._arguments = list(arguments)
        self._program = program
        self._lock = threading.Lock()
        self._closed = False
        self._child = self._start()
        self.info = self._child.info

    @property
    def pid(self) -> int:
        """The process that runs the model now."""
        return self._child.process.pid

    def submit(self, request: Request) -> Stream:
        """See Engine.submit. Starts the process anew where the last one ended."""
        link = _Link()
        channel = Channel(link.wake)
        child = self._serve(request, channel, link)
        return Stream(channel, child.thread, self)

    def serve(self, request: Request, outlet: Outlet) -> None:
        """See Engine.serve; the events are put on the thread that reads from the process."""
        self._serve(request, outlet, _Link())

    def memory_in_use(self) -> int:
        """Bytes of memory that this process and the model's hold."""
        own = int(psutil.Process().memory_info().rss)
        with contextlib.suppress(psutil.Error):
            return own + int(psutil.Process(self.pid).memory_info().rss)
        return own

    def close(self) -> None:
        """Ends open requests as cancelled, and the process. Twice is once."""
        with self._lock:
            self._closed = True
            self._child.stop()

    def _serve(self, request: Request, outlet: Outlet, link: _Link) -> _Child:
        request.check(self.info)
        with self._lock:
            if self._closed:
                raise EngineClosed("the model was closed; load it again")
            if not self._child.add(request, outlet, link):
                self._child.stop()
                self._child = self._start()
                self.info = self._child.info
                self._child.add(request, outlet, link)
            return self._child

    def _start(self) -> _Child:
        child = _Child(self._program, self._arguments)
        weakref.finalize(self, child.stop)
        return child


class _Link:
    """Tells the process of a request that was cancelled or read on."""

    def __init__(self) -> None:
        self.tell: Callable[[], None] | None = None

    def wake(self) -> None:
        if self.tell is not None:
            self.tell()


@dataclass(slots=True)
class _Open:
    """A request that the process works on."""

    outlet: Outlet
    seed: int
    prompt: int  # tokens
    paused: bool = False
    cancelled: bool = False


class _Child:
    """One process, with the thread that reads from it and watches it."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        folders = json.dumps([os.path.abspath(folder) for folder in sys.path])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the thread
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP + program, folders, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        self._ready: Future[ModelInfo] = Future()
        self._lock = threading.Lock()
        self._outbox: SimpleQueue[dict[str, Any] | int | None] = SimpleQueue()
        self._open: dict[int, _Open] = {}
        self._next = 0
        self._over = self._stopping = False
        self._watch = _Watch()
        self.thread = threading.Thread(target=self._read, name="edgeinfer-child", daemon=True)
        self.thread.start()
        threading.Thread(target=self._write, name="edgeinfer-child-stdin", daemon=True).start()
        try:
            self.info = self._ready.result()
        except BaseException:
            self.stop()
            raise

    def add(self, request: Request, outlet: Outlet, link: _Link) -> bool:
        """Hands a request over; False when the process is gone."""
        with self._lock:
            if self._over or self.process.poll() is not None:
                return False
            number, self._next = self._next, self._next + 1
            self._open[number] = _Open(outlet, request.params.seed or 0, len(request.ids))
            link.tell = lambda: self._outbox.put(number)
        self._outbox.put({"id": number, "request": pack_request(request)})
        return True

    def stop(self) -> None:
        """Lets the process end by itself, and if it does not, ends it. One that is gone already was not stopped."""
        self._stopping = self._stopping or self.process.poll() is None
        self._outbox.put(None)
        try:
            self.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def _write(self) -> None:
        """The thread that writes to the process: requests, and the numbers of those that changed; None ends it.

        Others only put to its queue, so that neither a full pipe nor the garbage collector, which may cancel from any
        thread, can make them wait.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(OSError), self.process.stdin as pipe:  # it is gone: the other thread sees that too
            while (item := self._outbox.get()) is not None:
                message = self._changes(item) if isinstance(item, int) else item
                line = memoryview(json.dumps(message).encode() + b"\n" if message else b"")
                while line:
                    line = line[pipe.write(line) :]

    def _changes(self, number: int) -> dict[str, Any] | None:
        """What the process does not know yet of a request: that it is to pause, or is cancelled."""
        known = self._open.get(number)
        if known is None:
            return None
        paused, cancelled = not known.outlet.ready, known.outlet.cancelled
        if (paused, cancelled) == (known.paused, known.cancelled):
            return None
        known.paused, known.cancelled = paused, cancelled
        return {"id": number, "cancelled": cancelled, "ready": not paused}

    def _read(self) -> None:
        """The thread: events to their outlets until the process ends, then its requests to theirs."""
        reason = ""
        try:
            for line in self._lines():
                reason = self._watch.problem(line)
                if reason:
                    break
                if line is not None:
                    self._deliver(json.loads(line))
        finally:
            self.process.kill()
            self.process.wait()
            self._finish(reason)

    def _lines(self) -> Any:
        """Each line of the process, and None for each second without one."""
        assert self.process.stdout is not None
        rest = b""
        while True:
            if not select.select([self.process.stdout], [], [], 1.0)[0]:
                yield None
                continue
            data = os.read(self.process.stdout.fileno(), _READ)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def _deliver(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            info = unpack_info(message["ready"])
            self._watch.on_gpu = info.device != "cpu"
            self._ready.set_result(info)
        elif "failed" in message:
            self._ready.set_exception(unpack_error(message["failed"]))
        elif "id" in message:
            self._pass_on(message["id"], message)

    def _pass_on(self, number: int, message: dict[str, Any]) -> None:
        known = self._open[number]
        if "error" in message:
            del self._open[number]
            known.outlet.fail(unpack_error(message["error"]))
            return
        event = unpack_event(message["event"])
        if isinstance(event, Finished) and event.finish_reason != "error":
            del self._open[number]
        known.outlet.put(event)
        if known.outlet.cancelled or not known.outlet.ready:
            self._outbox.put(number)

    def _finish(self, reason: str) -> None:
        with self._lock:
            self._over = True
            left = list(self._open.values())
            self._open.clear()
        self._outbox.put(None)
        error = self._crash(reason)
        self._errors.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if not self._ready.done():
            self._ready.set_exception(error)
        for known in left:
            cancelled = self._stopping and not reason
            ended = Finished("cancelled" if cancelled else "error", Usage(known.prompt), Timings(), known.seed)
            known.outlet.put(ended)
            if not cancelled:
                known.outlet.fail(error)

    def _crash(self, reason: str) -> EdgeInferError:
        code = self.process.returncode
        number = -code if code < 0 and not reason else 0
        what = reason or _ENDS.get(number) or (f"was ended by {signal.Signals(number).name}" if number else "ended")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        detail = f" ({last:.200})" if last else ""
        return EngineCrashed(
            f"the engine's process {what}{detail}; its reply is lost, the next call starts it anew", number
        )


_ENDS: dict[int, str] = {
    signal.SIGKILL: "was killed, most likely by the system for want of memory",
    signal.SIGABRT: "aborted, as a GPU that runs out of memory makes it",
    signal.SIGSEGV: "crashed in native code",
    signal.SIGBUS: "crashed in native code: a mapped file may have changed",
}


class _Watch:
    """Tells a process that works from one that hangs. Counts seconds that were waited, so that a sleep is none."""

    def __init__(self) -> None:
        self.on_gpu = False
        self._silent = self._stuck = self._idle = 0
        self._ticks = -1
        self._cpu = 0.0

    def problem(self, line: bytes | None) -> str:
        """What is wrong after one more line, or None for a second without one."""
        if line is None:
            self._silent += 1
            return f"has not been heard of for {self._silent} s" if self._silent >= SILENT_SECONDS else ""
        self._silent = 0
        if not line.startswith(b'{"beat"'):
            return ""
        beat = json.loads(line)
        idle = beat["cpu"] - self._cpu < _IDLE
        stuck = beat["working"] and beat["beat"] == self._ticks
        self._ticks, self._cpu = beat["beat"], beat["cpu"]
        self._stuck = self._stuck + 1 if stuck else 0
        self._idle = self._idle + 1 if stuck and idle else 0
        limit = GPU_SECONDS if self.on_gpu else SILENT_SECONDS
        if self._idle >= limit or self._stuck >= BUSY_SECONDS:
            return f"has hung in one step for {self._stuck} s"
        return ""
