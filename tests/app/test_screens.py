"""The screens with lists: models, chats, tree and settings, on a tape; their keys, and how they look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from edgeinfer import library
from edgeinfer.app.app import ChatApp, Options
from edgeinfer.app.config.sampling import EXPLAINED
from edgeinfer.app.conversations import Conversations, Stats
from edgeinfer.app.conversations.imports import import_file
from edgeinfer.app.engine import Wanted
from edgeinfer.app.screens.ask import Ask
from edgeinfer.app.screens.chats import ChatsScreen
from edgeinfer.app.screens.models import ModelsScreen
from edgeinfer.app.screens.picker import Picker
from edgeinfer.app.screens.tree import TreeScreen
from edgeinfer.errors import BadInput
from edgeinfer.library import Fit, Offer, Progress, PullStopped, Removed
from tests.app.world import chat, opener, say, screen, until

SIZES = [(80, 24), (120, 40), (40, 20)]
TITLES = ["Plan a week in Crete", "宽的字符 👩‍👩‍👧", "Explain [bold]brackets[/] \x1b[31m", "A title " * 12]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a conversation of three branches, and a few others."""
    file = tmp_path / "chats.db"
    with Conversations.open(file) as store:
        for title in TITLES:
            other = store.start()
            asked = store.add(other.id, None, "user", title)
            store.add(other.id, asked.id, "assistant", "A needle in it.", state="done")
        found = store.start(title="Branches")
        one = store.add(found.id, None, "user", "First question")
        stats = Stats(prompt=40, cached=0, completion=9, decode_rate=61.0)
        two = store.add(found.id, one.id, "assistant", "First answer", state="done", stats=stats)
        three = store.add(found.id, two.id, "user", "Second question")
        for words, cached in (("An answer", 49), ("Another answer", 71)):
            stats = Stats(prompt=72, cached=cached, completion=9, decode_rate=60.0)
            store.add(found.id, three.id, "assistant", words, state="done", stats=stats)
        store.add(found.id, two.id, "user", "Second question, edited")
        store.pin(other.id)
        store.look_at(found.id, store.tip(two.id) - 1)
        with store.write() as run:
            run("UPDATE conversations SET created = 1000, updated = 1000 + id")
    return file


OFFERS = [
    Offer(
        "small", "A small one", 98_000_000, "Q4_1", "llama", "Apache-2.0", "edgeinfer", "pypi:small", Path("/m/small")
    ),
    Offer("other", "", 253_000_000, "Q8_0", "gemma3", "MIT", "lm-studio", "", Path("/lm/other")),
    Offer("large", "A large one", 5_000_000_000, "Q4_K_M", "", "MIT", "catalogue", "hf:o/large", partial=34_000_000),
    Offer("huge\x1b[31m", "Too big", 90_000_000_000, "Q4_K_M", "", "MIT", "catalogue", "hf:o/huge"),
]


@pytest.fixture(autouse=True)
def shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "offers", lambda: list(OFFERS))
    monkeypatch.setattr(library, "bandwidth", lambda: 30e9)
    monkeypatch.setattr(library, "fit", lambda size: Fit(int(1.1 * size), 8_000_000_000))
    monkeypatch.setattr("edgeinfer.app.screens.chats.when", lambda seconds: f"{seconds % 60:05.0f}")


def last(path: Path) -> int:
    with Conversations.open(path) as store:
        return max(found.id for found in store.conversations())


async def opened(app: ChatApp, pilot: Pilot[None], key: str) -> Picker:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, Picker))
    found = app.screen
    assert isinstance(found, Picker)
    await until(pilot, lambda: found.rows.option_count and not found.rows.loading)
    return found


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ["models", "chats", "tree", "settings", "search"])
def test_how_it_looks(snap_compare: Any, path: Path, name: str, size: tuple[int, int]) -> None:
    store = Conversations.open(path)
    app = ChatApp(store, Options(Wanted("tape"), conversation=last(path)), opener({}))
    keys = {"models": "f3", "chats": "ctrl+o", "tree": "ctrl+t", "settings": "f10", "search": "ctrl+o"}

    async def show(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.engine.llm)
        found = await opened(app, pilot, keys[name])
        if name == "search":
            await pilot.press(*"needle")
            await until(pilot, lambda: isinstance(found, ChatsScreen) and len(found.hits) == 4)
        if name == "settings":  # the keys are as many as there are actions: no picture of them lasts
            await pilot.press(*"sampling.")
            await until(pilot, lambda: found.rows.option_count == len(EXPLAINED))
        if isinstance(found, ModelsScreen):
            await until(pilot, lambda: "tok/s" in screen(app) or size[0] < 80)
        found.query_one("#search").cursor_blink = False  # type: ignore[attr-defined]
        await pilot.pause(0.1)

    assert snap_compare(app, terminal_size=size, run_before=show)
    store.close()


@pytest.mark.parametrize("size", [(20, 5), (300, 100), (1, 1)])
def test_no_size_of_terminal_ends_the_app(path: Path, size: tuple[int, int]) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        for key in ("f3", "ctrl+o", "ctrl+t", "f10"):
            await opened(app, pilot, key)
            await pilot.press("down", "pagedown", "up", "escape")
            await until(pilot, lambda: app.screen is app.chat)

    chat(opener({}), path, script, size, conversation=last(path))


def test_a_chat_is_found_opened_renamed_pinned_deleted_and_brought_back(path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "ctrl+o")
        assert "\x1b" not in screen(app)
        assert found.chosen == str(app.session.store.conversations()[0].id)  # the pinned one is first
        await pilot.press(*"crete", "pause")
        await until(pilot, lambda: found.rows.option_count == 2)  # by its title, and by the message
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("ctrl+u", "enter")
        assert isinstance(app.screen, Ask)  # an empty title will not do
        await pilot.press(*"Crete!", "enter")
        await until(pilot, lambda: "Crete!" in screen(app))
        await pilot.press("f4")
        renamed = app.session.store.conversations("Crete!")[0]
        assert renamed.pinned
        await pilot.press("f8")
        assert not app.session.store.conversations("Crete!")
        await pilot.press("f9")
        assert app.session.store.conversations("Crete!")
        await until(pilot, lambda: found.rows.option_count == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen is app.chat)
        assert app.session.path[0].text == "Plan a week in Crete"

    chat(opener({}), path, script)


def test_a_message_that_was_found_is_gone_to(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"
    with Conversations.open(file) as store:
        leaf, found = None, store.start().id
        for turn in range(30):
            leaf = store.add(found, leaf, "user" if turn % 2 == 0 else "assistant", f"Number {turn}. " * 40).id

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await opened(app, pilot, "ctrl+o")
        await pilot.press(*"number 11.")
        await until(pilot, lambda: "reply: Number 11." in screen(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat)
        await until(pilot, lambda: "▐ Number 11. Number 11." in screen(app))
        assert not app.chat.transcript.following

    chat(opener({}), file, script)


def test_what_was_deleted_in_an_earlier_run_is_brought_back(path: Path) -> None:
    with Conversations.open(path) as store:
        store.delete(last(path))

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await opened(app, pilot, "ctrl+o")
        assert "Branches" not in screen(app)
        await pilot.press("f9")
        await until(pilot, lambda: "Branches" in screen(app))
        await pilot.press("f9")
        assert len(app.session.store.conversations()) == len(TITLES) + 1

    chat(opener({}), path, script)


def test_a_command_is_carried_out_also_where_another_screen_comes_first(path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        app.chat.prompt.write("/new")
        app.chat.prompt.action_send()
        app.open_screen("tree")
        await pilot.pause()
        assert app.screen is not app.chat
        assert not app.session.path

    chat(opener({}), path, script, conversation=last(path))


def test_a_chat_is_exported_and_imported(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await opened(app, pilot, "ctrl+o")
        before = len(app.session.store.conversations())
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("ctrl+u", *"out", "enter")
        await until(pilot, lambda: (tmp_path / "out.json").exists())
        await until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("ctrl+u", *"out", "enter")
        await pilot.pause()
        assert "is there already" in " ".join(screen(app).split())
        await pilot.press("escape", "f6")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press(*"out.json", "enter")
        await until(pilot, lambda: len(app.session.store.conversations()) == before + 1)
        await until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        await pilot.press("f6")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press(*"out.md", "enter")
        await until(pilot, lambda: any("expected" in note.message for note in app._notifications))

    chat(opener({}), path, script)
    assert (tmp_path / "out.md").read_text(encoding="utf-8").startswith("# A title")


def test_the_list_shows_what_another_window_wrote(path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "ctrl+o")
        count = found.rows.option_count
        with Conversations.open(path) as other:
            other.add(other.start().id, None, "user", "from another window")
        await until(pilot, lambda: found.rows.option_count == count + 1)

    chat(opener({}), path, script)


def test_the_tree_goes_to_a_branch_and_says_what_it_reused(path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "ctrl+t")
        assert isinstance(found, TreeScreen)
        text = screen(app)
        for line in ("reused 0 of 40", "reused 49 of 72", "reused 71 of 72", "├ An answer", "└ Another answer"):
            assert line in text
        assert found.chosen == str(app.session.leaf)
        await pilot.press(*"edited")
        await until(pilot, lambda: found.rows.option_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat)
        assert [message.text for message in app.session.path] == [
            "First question", "First answer", "Second question, edited",
        ]  # fmt: skip

    chat(opener({}), path, script, conversation=last(path))


def test_a_retry_is_a_branch_of_the_tree(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await say(app, pilot, "go")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: not app.chat.turns.busy and len(app.session.versions(app.session.path[-1].id)) == 2)
        await opened(app, pilot, "ctrl+t")
        assert "├ a reply" in screen(app)
        assert "└ a reply" in screen(app)

    chat(opener({"go": "a reply"}), tmp_path / "chats.db", script)


def test_a_model_is_pulled_stopped_resumed_and_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(planned: Any, on_progress: Any = None, stopped: Any = None) -> Any:
        asked.append(planned.name)
        while len(asked) == 1:
            on_progress(Progress(34_000_000, 68_000_000, "large.gguf"))
            if stopped():
                raise PullStopped("large")
        now[2] = replace(OFFERS[2], origin="edgeinfer", path=Path("/m/large"), partial=0)
        return now[2]

    now = list(OFFERS)
    monkeypatch.setattr(library, "offers", lambda: list(now))
    monkeypatch.setattr(library, "plan", lambda name: OFFERS[2])
    monkeypatch.setattr(library, "fetch", fetch)

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "f3")
        await pilot.press(*"large")
        await until(pilot, lambda: found.chosen == "large")
        assert "34 MB here" in screen(app)
        await pilot.press("enter")
        await until(pilot, lambda: "50%" in screen(app))
        await pilot.press("f6")
        await until(pilot, lambda: any("is kept" in note.message for note in app._notifications))
        await pilot.press("enter")
        await until(pilot, lambda: any("Enter uses it" in note.message for note in app._notifications))
        await until(pilot, lambda: "34 MB here" not in screen(app))
        before = list(app.session.path)
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat)
        await until(pilot, lambda: app.engine.wanted.model == "large")
        assert app.session.path == before

    chat(opener({}), path, script, conversation=last(path))
    assert asked == ["large", "large"]


def test_a_model_is_deleted_and_brought_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    removed = Removed("small", 98_000_000, Path("/trash"))

    def delete(name: str) -> Removed:
        if name == "other":
            raise BadInput("other was not pulled by edgeinfer")
        log.append(f"delete {name}")
        return removed

    monkeypatch.setattr(library, "delete", delete)
    monkeypatch.setattr(library, "undo_delete", lambda found: log.append(f"undo {found.name}"))
    monkeypatch.setattr(library, "empty_trash", lambda: log.append("empty"))

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "f3")
        await pilot.press("f8")
        await until(pilot, lambda: log == ["delete small"])
        await pilot.press("f9")
        await until(pilot, lambda: log == ["delete small", "undo small"])
        await until(pilot, lambda: found.rows.option_count == 4)
        await pilot.press("down")
        assert found.chosen == "other"
        await pilot.press("f8")
        await until(pilot, lambda: any("not pulled by edgeinfer" in note.message for note in app._notifications))

    chat(opener({}), path, script)
    assert log == ["delete small", "undo small", "empty"]


def test_commands_about_the_conversation(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        async def command(text: str) -> None:
            app.chat.prompt.write(text)
            await pilot.press("enter")
            await pilot.pause()

        await say(app, pilot, "go")
        await command("/rename Another title")
        await command("/system Be brief.")
        assert app.session.conversation is not None
        assert (app.session.conversation.title, app.session.conversation.system) == ("Another title", "Be brief.")
        assert app.session.messages()[0] == {"role": "system", "content": "Be brief."}
        await command("/export")
        await until(pilot, lambda: (tmp_path / "Another-title.md").exists())
        await command("/import Another-title.json")
        await until(pilot, lambda: len(app.session.store.conversations("Another title")) == 2)
        await command("/model small")
        await until(pilot, lambda: app.engine.wanted.model == "small")
        assert app.session.conversation.title == "Another title"
        await command("/models")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))

    chat(opener({"go": "a reply"}), tmp_path / "fresh.db", script)


def test_the_recorded_conversation_of_the_pictures_is_sound(tmp_path: Path) -> None:
    from edgeinfer.app import screenshots

    with Conversations.open(tmp_path / "chats.db") as store:
        imported = import_file(store, Path(screenshots.__file__).parent / "demo.json")
        assert not imported.notes
        assert all(message.state in ("sent", "done") for message in store.tree(imported.conversations[0]))


def test_the_pictures_are_made_by_a_command(tmp_path: Path) -> None:
    from edgeinfer.app.screenshots import take

    written = take(tmp_path / "pictures", Wanted("tape"), opener({}))
    assert [file.name for file in written] == ["chat.svg", "models.svg", "tree.svg"]
    for file, words in zip(written, ("remainder", "small", "reused"), strict=True):
        assert words in file.read_text(encoding="utf-8")
