"""The app on a tape: a model of single bytes that answers a message with what a table says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from edgeinfer.app.app import ChatApp, Options
from edgeinfer.app.conversations import Conversations
from edgeinfer.app.engine import OnProgress, Wanted
from edgeinfer.app.render.entry import Told
from edgeinfer.backends import Choice
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import EdgeInferError
from edgeinfer.generation.engine import Engine
from edgeinfer.llm import LLM
from edgeinfer.tokenizer.template import Encoded
from tests.generation.fakes import END, FakeTokenizer

BYTES = [b"<end>", *(bytes([value]) for value in range(256)), b"", b""]
TURN, GO = 257, 258  # tokens without text: before a message's content, and after the last one


class ByteTokenizer(FakeTokenizer):
    """Token i is byte i - 1."""

    bos_id = None
    add_bos = False

    def __init__(self) -> None:
        super().__init__(BYTES)

    def encode(self, text: str, add_bos: bool = False, special: bool = False) -> list[int]:
        return [byte + 1 for byte in text.encode(errors="replace")]

    def lookalikes(self, text: str) -> list[str]:
        return []


class TurnTemplate:
    def source(self, tools: bool = False) -> str:
        return ""

    def encode(self, messages: Sequence[Any], tokenizer: ByteTokenizer, tools: object = None, **_: Any) -> Encoded:
        ids = [token for message in messages for token in (TURN, *tokenizer.encode(message["content"]))]
        return Encoded([*ids, GO], "")

    def drops(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass


Replies = Mapping[str, str] | Callable[[str], str]


def tape(replies: Replies) -> Callable[[Sequence[int]], int]:
    """The next byte of the reply to the last message."""

    def next_token(history: Sequence[int]) -> int:
        tokens = list(history)
        go = len(tokens) - 1 - tokens[::-1].index(GO)
        turn = go - 1 - tokens[:go][::-1].index(TURN)
        asked = bytes(token - 1 for token in tokens[turn + 1 : go]).decode()
        reply = (replies(asked) if callable(replies) else replies[asked]).encode()
        made = len(tokens) - go - 1
        return reply[made] + 1 if made < len(reply) else END

    return next_token


def taped(replies: Replies, **options: Any) -> LLM:
    """A loaded tape; ``options`` are TapeBackend's."""
    tokenizer: Any = ByteTokenizer()
    template: Any = TurnTemplate()
    options = {"vocab_size": len(BYTES), "context": 4096, **options}
    engine = Engine(lambda: TapeBackend(tape(replies), **options), tokenizer)
    return LLM("tape", Choice("tape", "a test"), engine, tokenizer, template)


def opener(replies: Replies, wait: Callable[[], object] = lambda: None, **options: Any) -> Any:
    """What the app opens its model with; ``wait`` is called first, and a context that is asked for is given."""

    def open_tape(wanted: Wanted, on_progress: OnProgress) -> LLM:
        wait()
        given = {"context": wanted.context} if wanted.context else {}
        return taped(replies, **{**options, **given})

    return open_tape


def failing(error: EdgeInferError) -> Any:
    def open_nothing(wanted: Wanted, on_progress: OnProgress) -> LLM:
        raise error

    return open_nothing


Script = Callable[[ChatApp, Pilot[None]], Awaitable[None]]


def chat(open_model: Any, store: Path, script: Script, size: tuple[int, int] = (80, 24), **options: Any) -> ChatApp:
    """Runs the app in a terminal of ``size`` and drives it by ``script``."""

    async def run() -> ChatApp:
        with Conversations.open(store) as opened:
            app = ChatApp(opened, Options(**{"wanted": Wanted("tape"), **options}), open_model)
            async with app.run_test(size=size) as pilot:
                await until(pilot, lambda: hasattr(app, "chat") and app.chat.is_mounted)
                await script(app, pilot)
            return app

    return asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], object], seconds: float = 20) -> None:
    """Waits for something that comes by itself."""
    for _ in range(round(seconds / 0.02)):
        if condition():
            await pilot.pause()
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


async def say(app: ChatApp, pilot: Pilot[None], text: str) -> Told:
    """Sends a message and waits for the whole reply."""
    app.chat.prompt.write(text)
    await pilot.press("enter")
    await pilot.pause()
    await until(pilot, lambda: not app.chat.turns.busy)
    return next(entry for entry in reversed(app.chat.transcript.entries) if isinstance(entry, Told))


def lines(app: ChatApp) -> list[str]:
    """The screen as text."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip)[:width].rstrip() for strip in strips[:height]]


def screen(app: ChatApp) -> str:
    return "\n".join(lines(app))
