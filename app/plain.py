"""The chat line by line, for screen readers and terminals that cannot draw: no colours, nothing drawn twice.

What is said goes the same way as in the app: stored before it is answered, a reply while it is made.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import TextIO

from edgeinfer.app.actions import ACTIONS
from edgeinfer.app.attachments import attach, named_files
from edgeinfer.app.commands import parsed
from edgeinfer.app.conversations import Conversations
from edgeinfer.app.engine import Engine, Opener, Wanted, in_thread, open_model
from edgeinfer.app.live import Live
from edgeinfer.app.render.figures import foot
from edgeinfer.app.session import Session
from edgeinfer.errors import BadInput, EdgeInferError
from edgeinfer.sanitize import sanitize
from edgeinfer.types import Event, ReasoningDelta, TextDelta


class PlainChat:
    """Reads lines, writes lines. A line that ends in a backslash goes on in the next one."""

    def __init__(
        self, store: Conversations, wanted: Wanted, opener: Opener = open_model, output: TextIO | None = None
    ) -> None:
        self._session = Session(store, Engine(opener))
        self._wanted = wanted
        self._output = output or sys.stdout
        self._commands: dict[str, Callable[[], object]] = {
            "new_chat": self._session.begin,
            "retry": self._retry,
            "help": self._help,
            "quit": self._quit,
        }
        self._over = False

    def run(self) -> None:
        """Until the input ends or one says so. Raises what loading the model raises."""
        with asyncio.Runner() as runner:
            self._runner = runner
            if self._session.store.notice:
                self._write(f"Note: {self._session.store.notice}\n")
            self._write("Loading the model.\n")
            llm = runner.run(self._session.engine.load(self._wanted, lambda _: None))
            self._write(f"{llm.name} is ready. /help lists what else can be said; an empty line does nothing.\n")
            try:
                while not self._over and (text := self._read()) is not None:
                    if text.strip():
                        self._take(text)
            finally:
                runner.run(self._session.engine.close())

    def _read(self) -> str | None:
        lines: list[str] = []
        with suppress(EOFError, KeyboardInterrupt):
            lines.append(input("You: "))
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input("...: "))
            return "\n".join(lines)
        self._write("\n")
        return None

    def _take(self, text: str) -> None:
        try:
            command = parsed(text)
            if command is None:
                self._runner.run(self._turn(text))
            elif command.action.name in self._commands:
                self._commands[command.action.name]()
            else:
                raise BadInput(f"{command.action.slash} needs the screen; here there are: {', '.join(self._known())}")
        except EdgeInferError as error:
            self._write(f"Error: {error}\n")
        except KeyboardInterrupt:
            self._write("\nStopped; what there is of the reply is kept.\n")

    async def _turn(self, text: str | None) -> None:
        llm = self._session.engine.llm
        assert llm is not None
        if text is not None:
            files = [attach(file, lambda content: len(llm.tokenize(content))) for file in named_files(text)]
            await in_thread(lambda: self._session.say(text, files))
        live = Live()
        self._write("Reply: ")
        async with aclosing(self._session.answer()) as events:
            async for event in events:
                self._show(event, live)
        self._write(f"\n[{foot(self._session.path[-1])}]\n")

    def _show(self, event: Event, live: Live) -> None:
        thinking = live.thinking
        live.count(event)
        match event:
            case ReasoningDelta() if not thinking:
                self._write("(thinking) ")
            case TextDelta(text):
                if thinking:
                    self._write(f"({live.thought})\n")
                self._write(text)

    def _retry(self) -> None:
        if self._session.path and self._session.path[-1].role == "assistant":
            self._session.back_to(self._session.path[-1].id)
        if self._session.path:
            self._runner.run(self._turn(None))

    def _help(self) -> None:
        for action in ACTIONS:
            if action.name in self._commands:
                self._write(f"{action.slash}: {action.help}\n")
        self._write("@PATH: a text file goes along. Ctrl-C stops a reply. Ctrl-D leaves.\n")

    def _quit(self) -> None:
        self._over = True

    def _known(self) -> list[str]:
        return [action.slash for action in ACTIONS if action.name in self._commands]

    def _write(self, text: str) -> None:
        self._output.write(sanitize(text))
        self._output.flush()
