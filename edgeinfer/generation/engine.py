"""The engine: a thread of its own that makes, uses and frees the backend, and serves requests from all others.

MLX streams belong to a thread, and a llama.cpp context is not to be shared: everything that touches the backend
comes to this thread as a command in one queue.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import psutil

from edgeinfer.backends.base import Backend, ModelInfo
from edgeinfer.errors import EngineClosed
from edgeinfer.generation.heartbeat import Pulse
from edgeinfer.generation.request import Request
from edgeinfer.generation.run import Outlet
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.generation.stream import Channel, Stream
from edgeinfer.speculation.speculation import Shared

if TYPE_CHECKING:
    from edgeinfer.tokenizer.vocabulary import Tokenizer

__all__ = ["Engine", "Stream"]

Answer = TypeVar("Answer")
Command: TypeAlias = Callable[[Scheduler], None] | None
"""Something to do on the engine's thread; None ends it."""

_PATIENCE = 0.25  # seconds between looks at signals while waiting
_AT_EXIT = 10.0  # seconds that the interpreter's end waits for a running step


class Engine:
    """Serves one model. Every method may be called from any thread.

    ``open_backend`` runs on the engine's thread; the constructor waits for it and raises what it raises. ``speculate``
    makes what all requests share of speculation; None: there is none. ``deterministic``: a request gives the same
    tokens whatever runs beside it or ran before, bit for bit, at whatever cost in speed.
    """

    def __init__(
        self,
        open_backend: Callable[[], Backend],
        tokenizer: Tokenizer,
        speculate: Callable[[Backend], Shared] | None = None,
        pulse: Pulse | None = None,
        deterministic: bool = False,
    ) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._closed = False
        pulse = pulse or Pulse()
        opened: Future[ModelInfo] = Future()
        self._thread = threading.Thread(
            target=_serve,
            args=(self._commands, open_backend, tokenizer, speculate, opened, pulse, deterministic),
            name="edgeinfer-engine",
            daemon=True,
        )
        _RUNNING[self._thread] = self._commands
        weakref.finalize(self, self._commands.put, None).atexit = False
        self._thread.start()
        self.info = self._result(opened)

    def submit(self, request: Request) -> Stream:
        """Starts a request and returns its events at once.

        Raises BadRequest or ContextLimit before anything is computed, EngineClosed after ``close()``.
        """
        channel = Channel(_waker(self._commands))
        self.serve(request, channel)
        return Stream(channel, self._thread, self)

    def serve(self, request: Request, outlet: Outlet) -> None:
        """Starts a request whose events go to ``outlet``, on the engine's thread. Raises what ``submit`` raises."""
        self._check_open()
        request.check(self.info)
        self._commands.put(lambda scheduler: scheduler.add(request, outlet))

    def wake(self) -> None:
        """Lets the engine's thread look at its outlets again."""
        self._commands.put(lambda _: None)

    def call(self, function: Callable[[Backend], Answer]) -> Answer:
        """Runs ``function(backend)`` on the engine's thread, between two steps, and returns what it returns."""
        self._check_open()
        answer: Future[Answer] = Future()

        def command(scheduler: Scheduler) -> None:
            try:
                answer.set_result(function(scheduler.backend))
            except BaseException as error:  # raised again in the caller's thread
                answer.set_exception(error)

        self._commands.put(command)
        return self._result(answer)

    def memory_in_use(self) -> int:
        """Bytes of memory that this process holds."""
        return int(psutil.Process().memory_info().rss)

    def close(self) -> None:
        """Ends open requests as cancelled and frees the backend. Twice is once."""
        self._closed = True
        self._commands.put(None)
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed or not self._thread.is_alive():
            raise _closed()

    def _result(self, future: Future[Answer]) -> Answer:
        """Waits in small steps, which Ctrl-C can end on every platform."""
        while not wait([future], _PATIENCE).done:
            if not self._thread.is_alive() and not future.done():
                raise _closed()
        return future.result()


_RUNNING: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Command]] = weakref.WeakKeyDictionary()


@atexit.register
def _end_all() -> None:
    """A daemon thread must not be inside native code while the interpreter goes down."""
    running = list(_RUNNING.items())
    for _, commands in running:
        commands.put(None)
    for thread, _ in running:
        thread.join(_AT_EXIT)


def _serve(
    commands: SimpleQueue[Command],
    open_backend: Callable[[], Backend],
    tokenizer: Tokenizer,
    speculate: Callable[[Backend], Shared] | None,
    opened: Future[ModelInfo],
    pulse: Pulse,
    deterministic: bool,
) -> None:
    """The engine's thread. It knows nothing of the Engine, so that dropping that one ends it."""
    try:
        backend = open_backend()
        alone = deterministic and not backend.info.row_invariant
        shared = speculate(backend) if speculate and not alone else None
        scheduler = Scheduler(backend, tokenizer, speculation=shared, alone=alone)
    except BaseException as error:  # raised again by the constructor
        opened.set_exception(error)
        return
    pulse.working = False
    opened.set_result(replace(backend.info, drafters=tuple(shared.sources) if shared else ()))
    del opened, open_backend, backend, shared, speculate
    try:
        while _obey(scheduler, commands, pulse):
            pass
    finally:
        scheduler.close()


def _obey(scheduler: Scheduler, commands: SimpleQueue[Command], pulse: Pulse) -> bool:
    """One step and the commands that came; with nothing to do it waits for one. False when it is told to end."""
    pulse.working = True
    block = not scheduler.tick()
    pulse.working = False
    pulse.ticks += 1
    while True:
        try:
            command = commands.get(block=block)
        except Empty:
            return True
        if command is None:
            return False
        command(scheduler)
        block = False


def _waker(commands: SimpleQueue[Command]) -> Callable[[], None]:
    return lambda: commands.put(lambda _: None)


def _closed() -> EngineClosed:
    return EngineClosed("the model was closed; load it again")
