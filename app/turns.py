"""Who speaks when: messages wait for the model and for each other, replies are streamed onto the screen."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from edgeinfer.app.attachments import attach, named_files
from edgeinfer.app.conversations import Attachment
from edgeinfer.app.engine import CRASHES, in_thread
from edgeinfer.app.live import Live
from edgeinfer.app.render.entry import Note, Said, Told
from edgeinfer.app.render.figures import foot
from edgeinfer.app.ways import DropOldest, Lengthen
from edgeinfer.errors import ContextLimit, EdgeInferError, EngineCrashed
from edgeinfer.types import Event, ReasoningDelta, TextDelta
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.app.screens.chat import ChatScreen

COSTLY = 4
"""A frame that took long waits so many times as long for the next, and keys are answered in between."""


class Turns:
    """Messages that wait, and the reply that is being made."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._waiting: deque[tuple[str, Said]] = deque()
        self.busy = False
        self.live: Live | None = None
        self._reply: Told | None = None
        self._dirty = False
        self._next_frame = 0.0
        self._wait: asyncio.Task[bool] | None = None

    @property
    def unsaid(self) -> str:
        """Messages that wait for their turn and are stored nowhere yet."""
        return "\n\n".join(text for text, _ in self._waiting)

    def take(self, text: str) -> None:
        """A message that was sent: it is answered now, or waits."""
        if self.busy:
            entry = Said(text, notes=["waits for its turn"], queued=True)
            self._waiting.append((text, entry))
            self._screen.transcript.add(entry)
        else:
            self._screen.run_turn(text)

    def give_back(self) -> str:
        """Takes the waiting messages back, as text."""
        text = self.unsaid
        for _, entry in self._waiting:
            self._screen.transcript.take_out(entry)
        self._waiting.clear()
        return text

    def stop(self) -> None:
        """Ends the reply, or the waiting for the model."""
        self._screen.session.engine.stop()
        if self._wait is not None:
            self._wait.cancel()

    async def run(self, text: str | None) -> None:
        """One message and its answer, then those that wait; None answers the branch as it is."""
        self.busy = True
        self._screen.show_figures()
        try:
            if text is None or await self._say(text):
                await self._answer()
            while self._waiting:
                text, entry = self._waiting.popleft()
                self._screen.transcript.take_out(entry)
                if await self._say(text):
                    await self._answer()
        finally:
            self.busy = False
            self._screen.show_figures()

    async def _say(self, text: str) -> bool:
        """Stores a message and shows it; False where it could not be, and is in the prompt again."""
        screen, count = self._screen, self._counter
        try:
            files = await in_thread(lambda: [attach(file, count) for file in named_files(text)])
            said = await in_thread(lambda: screen.session.say(text, files))
        except EdgeInferError as error:
            screen.give_back(text)
            screen.complain(str(error))
            return False
        screen.entered(said)
        return True

    @property
    def _counter(self) -> Callable[[str], int]:
        llm = self._screen.session.engine.llm
        return (lambda text: len(llm.tokenize(text))) if llm is not None else (lambda text: 0)

    async def _answer(self) -> None:
        reply = Told()
        self._screen.transcript.add(reply)
        try:
            while await self._ready(reply) and not await self._streamed(reply):
                pass
        except EngineCrashed as error:
            self._end(reply, _crashed(error, self._screen.session.engine.crashes), trouble=True)
        except EdgeInferError as error:
            self._end(reply, str(error), trouble=True)

    async def _streamed(self, reply: Told) -> bool:
        """Streams the reply, and asks where the conversation does not fit; False: the model is being loaded anew."""
        try:
            await self._stream(reply, "refuse")
        except ContextLimit as limit:
            match await self._screen.ask_about_context(limit):
                case DropOldest():
                    await self._stream(reply, "drop-oldest")
                case Lengthen(context, kv):
                    self._screen.chat_app.reload(context=context, kv=kv)
                    return False
                case _:
                    self._end(reply, "not answered: it does not fit the context", trouble=True)
                    self._screen.reconsider()
        return True

    async def _ready(self, reply: Told) -> bool:
        """Waits for the model; False where there will be none, or nobody waits any longer."""
        app = self._screen.chat_app
        if app.engine.llm is None:
            reply.foot = "waits for the model"
            self._show(reply)
        self._wait = asyncio.ensure_future(app.ready())
        await asyncio.wait({self._wait})
        wait, self._wait = self._wait, None
        if wait.cancelled():
            self._end(reply, "stopped before it began")
            return False
        if not wait.result():
            self._end(reply, f"not answered: {app.trouble or 'there is no model'}", trouble=True)
            return False
        return True

    async def _stream(self, reply: Told, overflow: str) -> None:
        screen, self.live, self._reply = self._screen, Live(), reply
        reply.foot = "reads …"
        self._show(reply)
        try:
            async with aclosing(screen.session.answer(overflow=overflow)) as events:
                async for event in events:
                    self._take(reply, event)
        finally:
            self._reply = None
            self._show(reply)
        told = screen.session.path[-1]
        reply.message = told.id
        reply.finish(foot(told), trouble=told.state == "error")
        screen.answered(reply, told)

    def _take(self, reply: Told, event: Event) -> None:
        assert self.live is not None
        self.live.count(event)
        reply.foot = ""
        match event:
            case TextDelta(text):
                reply.grow(text)
            case ReasoningDelta(text):
                reply.grow(reasoning=text)
        self._dirty = True

    def frame(self) -> None:
        """Shows what came since the last frame, unless that one was costly and it is too soon."""
        now, reply = time.perf_counter(), self._reply
        if reply is None or now < self._next_frame or not (self._dirty or (self.live and self.live.thinking)):
            return
        self._show(reply)
        self._next_frame = now + COSTLY * (time.perf_counter() - now)

    def _show(self, reply: Told) -> None:
        self._dirty = False
        if reply.reasoning and self.live is not None:
            reply.label = self.live.thought
        reply.show()
        self._screen.transcript.lay_out()

    def _end(self, reply: Told, why: str, trouble: bool = False) -> None:
        """A reply that came to nothing, or to less than it should, and why."""
        if reply.text or reply.reasoning:
            reply.message = self._screen.session.leaf
            reply.finish(why, trouble)
        else:
            self._screen.transcript.take_out(reply)
            self._screen.transcript.add(Note(why, trouble))
        self._screen.transcript.lay_out()


def _crashed(error: EngineCrashed, crashes: int) -> str:
    if crashes < CRASHES:
        return f"{error} (Ctrl-R tries again)"
    return f"{error}. That was the third time in a row: take a smaller context (/reload 2048) or another model"


def attachment_note(attachment: Attachment) -> str:
    """What stands below a message that a file came with."""
    tokens = f" · {attachment.tokens:,} tokens" if attachment.tokens else ""
    return f"@ {attachment.name} · {human_bytes(len(attachment.text.encode(errors='replace')))}{tokens}"
