"""Pictures of the screens at three sizes; nothing in them depends on time. ``--snapshot-update`` takes them anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot

from edgeinfer import library
from edgeinfer.app.app import ChatApp, Options
from edgeinfer.app.conversations import Attachment, Conversations, Stats
from edgeinfer.app.engine import Wanted
from edgeinfer.app.screens.context import ContextScreen
from edgeinfer.app.widgets.figures import Figures
from edgeinfer.errors import ContextLimit
from tests.app.test_context import FORMATS
from tests.app.world import failing, opener, screen, until

SIZES = [(80, 24), (120, 40), (40, 20)]
CODE = "Here it is:\n\n```python\ndef double(x: int) -> int:  # twice\n    return 2 * x\n```\n"
CODE += "\n| in | out |\n|---|---|\n| 2 | 4 |\n"
STATS = Stats(prompt=96, cached=71, completion=102, decode_rate=86.1, first_token=0.16, finish_reason="stop")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Conversations]:
    """A conversation with an attached file, reasoning, code, a table, and two versions of the last answer."""
    with Conversations.open(tmp_path / "chats.db") as opened:
        chat = opened.start().id
        file = Attachment("notes.txt", "twice\n", 2)
        asked = opened.add(chat, None, "user", "Write a function that doubles.", attachments=(file,))
        opened.add(chat, asked.id, "assistant", "No.", state="cancelled", stats=STATS)
        opened.add(chat, asked.id, "assistant", CODE, reasoning="Twice is two times.", state="done", stats=STATS)
        yield opened


def waiting(store: Conversations, conversation: int | None) -> ChatApp:
    """The app with a model that never comes, so that no figure moves."""
    model = opener({}, wait=threading.Event().wait)
    return ChatApp(store, Options(Wanted("tape"), conversation=conversation), model)


async def still(pilot: Pilot[None]) -> ChatApp:
    app: Any = pilot.app
    await until(pilot, lambda: hasattr(app, "chat") and app.chat.is_mounted and app.model_line)
    app.chat.prompt.cursor_blink = False
    return app  # type: ignore[no-any-return]


async def empty(pilot: Pilot[None]) -> None:
    await still(pilot)


async def conversation(pilot: Pilot[None]) -> None:
    app = await still(pilot)
    await pilot.press("f9", "ctrl+up")
    app.chat.prompt.write("And one that\ntriples?")


async def queued(pilot: Pilot[None]) -> None:
    await still(pilot)
    await pilot.press(*"more", "enter", *"and more", "enter", *"/re")


async def plots(pilot: Pilot[None]) -> None:
    app = await still(pilot)
    await pilot.press("f2")
    figures = app.chat.query_one(Figures)
    for number in range(60):
        figures.speed(80 + number % 7)
        figures.memory(200_000_000 + number * 1_000_000)
    for number in range(8):
        figures.steps(1 + number / 8)
    figures.drafts(1.4, 12, 40)


async def help_keys(pilot: Pilot[None]) -> None:
    await still(pilot)
    await pilot.press("f1")


async def context(pilot: Pilot[None]) -> None:
    app = await still(pilot)
    llm: Any = SimpleNamespace(info=SimpleNamespace(backend="mlx", kv="k8v4"), kept_from=lambda messages, tokens: 1)
    session: Any = SimpleNamespace(
        engine=SimpleNamespace(llm=llm, wanted=Wanted("tape")), messages=app.session.messages, answer_tokens=1024
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "trained_context", lambda model: 32768)
        patch.setattr(library, "kv_formats", lambda model: FORMATS)
        await app.push_screen(ContextScreen(session, ContextLimit("too long", 8200, 8192)))
        await until(pilot, lambda: "k3v3" in screen(app))


SCENES: dict[str, tuple[Callable[[Pilot[None]], Any], int | None]] = {
    "empty": (empty, None),
    "conversation": (conversation, 1),
    "queued": (queued, None),
    "plots": (plots, 1),
    "help": (help_keys, None),
    "context": (context, 1),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", SCENES)
def test_screens(scene: str, size: tuple[int, int], store: Conversations, snap_compare: Any) -> None:
    script, opened = SCENES[scene]
    assert snap_compare(waiting(store, opened), terminal_size=size, run_before=script)


def test_no_model(store: Conversations, snap_compare: Any) -> None:
    from edgeinfer.errors import MemoryLimit

    app = ChatApp(store, Options(Wanted("tape")), failing(MemoryLimit("tape needs 9.0 GB; 1.0 GB are free", 9, 1)))

    async def script(pilot: Pilot[None]) -> None:
        shown = await still(pilot)
        await until(pilot, lambda: shown.trouble)

    assert snap_compare(app, run_before=script)
