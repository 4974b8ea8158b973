"""The app's thin way to the library: loads the model in the background, streams replies, stops them, counts crashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from edgeinfer.errors import EngineCrashed
from edgeinfer.types import Event, Finished, Message, Timings, Usage

if TYPE_CHECKING:
    from edgeinfer.llm import LLM, Progress

Answer = TypeVar("Answer")

CRASHES = 3
"""Crashes in a row after which the app no longer starts the model by itself."""
STOP_SECONDS = 0.15
"""How long a stopped reply may take to end in order, before it is given up."""
_STOPPED = Finished("cancelled", Usage(), Timings(), seed=0)
"""Of our own, where the model does not end a stopped reply in time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to load; empty values are the user's settings."""

    model: str = ""
    backend: str = ""
    context: int | None = None
    threads: int | None = None
    kv: str = ""
    template: str = ""


OnProgress: TypeAlias = "Callable[[Progress], None]"
Opener: TypeAlias = "Callable[[Wanted, OnProgress], LLM]"


def open_model(wanted: Wanted, on_progress: OnProgress) -> LLM:
    """Loads into a process of its own: what kills the model costs a reply, never the conversation."""
    from edgeinfer.llm import load

    return load(
        wanted.model,
        backend=wanted.backend,
        context=wanted.context,
        threads=wanted.threads,
        kv=wanted.kv,
        template=wanted.template,
        isolate=True,
        on_progress=on_progress,
    )


class Engine:
    """The model that answers. Its methods run in the app's event loop; what blocks runs in threads."""

    def __init__(self, opener: Opener = open_model) -> None:
        self.llm: LLM | None = None
        self.wanted = Wanted()
        self.crashes = 0  # in a row
        self._opener = opener
        self._stream: Any = None
        self._stopping = asyncio.Event()

    async def load(self, wanted: Wanted, on_progress: OnProgress) -> LLM:
        """Loads a model in place of the one before. Raises what ``edgeinfer.load`` raises; then there is none."""
        before, self.llm = self.llm, None
        if before is not None:
            await in_thread(before.close)
        self.wanted = wanted
        self.llm = await in_thread(lambda: self._opener(wanted, on_progress))
        self.crashes = 0
        return self.llm

    async def reply(self, messages: Sequence[Message], **options: Any) -> AsyncGenerator[Event]:
        """The events of an answer, Finished the last; raises what the library raises."""
        llm = self.llm
        assert llm is not None
        self._stopping.clear()
        try:
            submitted = asyncio.ensure_future(in_thread(lambda: llm.stream(messages, **options)))
            if not await self._comes(submitted, 0):  # a long prompt takes a while to read; dropped, it is cancelled
                yield _STOPPED
                return
            self._stream = stream = submitted.result()
            events = aiter(stream)
            try:
                while (event := await self._next(events)) is not None:
                    yield event
                    if isinstance(event, Finished) and event.finish_reason != "error":  # after which it raises
                        break
            finally:
                stream.close()
        except EngineCrashed:
            self.crashes += 1
            raise
        finally:
            self._stream = None
        self.crashes = 0

    def stop(self) -> None:
        """Ends the reply with what there is of it. Without one it does nothing."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.cancel()

    async def memory(self) -> int:
        """Bytes that the app and the model hold; 0 without a model."""
        return await in_thread(self.llm.memory_in_use) if self.llm is not None else 0

    async def close(self) -> None:
        llm, self.llm = self.llm, None
        if llm is not None:
            await in_thread(llm.close)

    async def _next(self, events: AsyncGenerator[Event]) -> Event | None:
        """The next event; a Finished of our own where a stopped reply does not end in time."""
        coming = asyncio.ensure_future(anext(events, None))
        return coming.result() if await self._comes(coming, STOP_SECONDS) else _STOPPED

    async def _comes(self, coming: asyncio.Future[Any], patience: float) -> bool:
        """Waits for it, after a stop no more than ``patience`` seconds; what does not come then is cancelled."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not coming.done():
            await asyncio.wait({coming}, timeout=patience)
        return coming.done() or not coming.cancel()


async def in_thread(function: Callable[[], Answer]) -> Answer:
    """What ``function`` returns, run in a thread that does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(answer)  # type: ignore[arg-type]

    def run() -> None:
        answer, problem = None, None
        try:
            answer = function()
        except BaseException as error:  # raised again in the event loop
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer, problem)

    threading.Thread(target=run, name="edgeinfer-app", daemon=True).start()
    return await done
