"""The way of events from the engine's thread to a consumer in any other thread, or in an event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from edgeinfer.errors import EngineClosed
from edgeinfer.types import Event, Finished

BACKLOG = 64
"""Events that may lie unread before a request is paused."""

_PATIENCE = 0.25  # seconds between looks at the engine while waiting


class Channel:
    """The engine's end of a stream. It holds no lock, so that the garbage collector may cancel from any thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.submitted = time.perf_counter()
        self.cancelled = False
        self.notify: Callable[[], object] | None = None  # called after each event, on the engine's thread
        self._wake = wake
        self._paused = False
        self._items: SimpleQueue[Event | BaseException] = SimpleQueue()

    @property
    def ready(self) -> bool:
        self._paused = self._items.qsize() > BACKLOG
        if self._paused and self._items.qsize() <= BACKLOG:  # read in between, by one who saw no pause to end
            self._paused = False
        return not self._paused

    def put(self, event: Event) -> None:
        self._put(event)

    def fail(self, error: BaseException) -> None:
        self._put(error)

    def _put(self, item: Event | BaseException) -> None:
        self._items.put(item)
        notify = self.notify
        if notify is not None:
            with suppress(RuntimeError):  # the event loop was closed before its stream
                notify()

    def cancel(self) -> None:
        self.cancelled = True
        self._wake()

    def take(self, timeout: float) -> Event | BaseException | None:
        """The next item; None when none came within ``timeout`` seconds."""
        try:
            item = self._items.get(timeout=timeout) if timeout else self._items.get_nowait()
        except Empty:
            return None
        if self._paused and self._items.qsize() <= BACKLOG // 2:
            self._wake()
        return item


class Stream:
    """The events of one request, from the first TextDelta to Finished; what went wrong is raised after that.

    Leaving a loop over it, ``close()``, and dropping it cancel the request within one step. ``cancel()``, from any
    thread, lets the consumer read on up to Finished("cancelled"). One consumer reads a stream, with ``for``,
    ``next`` or ``async for``.
    """

    def __init__(self, channel: Channel, thread: Thread, keep: object) -> None:
        self._channel = channel
        self._thread = thread
        self._keep = keep  # the engine lives while its streams are read
        self._done = False
        weakref.finalize(self, channel.cancel).atexit = False

    def cancel(self) -> None:
        """Ends the request within one step. Twice is once; after the end it does nothing."""
        self._channel.cancel()

    def close(self) -> None:
        """Cancels, and gives up what was not read."""
        if not self._done:
            self._done = True
            self._channel.cancel()

    def __next__(self) -> Event:
        event = self._next()
        if event is None:
            raise StopIteration
        return event

    def __iter__(self) -> Iterator[Event]:
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[Event]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._channel.notify = lambda: loop.call_soon_threadsafe(arrived.set)
        try:
            while not self._done:
                arrived.clear()
                item = self._taken(0)
                if item is not None:
                    yield item
                elif not self._done:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PATIENCE):
                            await arrived.wait()
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self) -> Event | None:
        """The next event, waited for in small steps, which Ctrl-C can end on every platform; None after the end."""
        event = None
        while event is None and not self._done:
            event = self._taken(_PATIENCE)
        return event

    def _taken(self, timeout: float) -> Event | None:
        alive = self._thread.is_alive()
        item = self._channel.take(timeout)
        if item is None and not alive:
            self._done = True
            raise EngineClosed("the model was closed; load it again")
        if isinstance(item, BaseException):
            self._done = True
            raise item
        if isinstance(item, Finished) and item.finish_reason != "error":
            self._done = True
        return item
