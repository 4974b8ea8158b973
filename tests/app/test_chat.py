"""The chat screen on a tape: what is shown, what is stored, and what the keys do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from edgeinfer.app.app import ChatApp
from edgeinfer.app.conversations import Conversations
from edgeinfer.app.render.entry import Said, Told
from edgeinfer.errors import EngineCrashed, MemoryLimit
from edgeinfer.sanitize import sanitize
from tests.app.terminal import ESCAPES
from tests.app.world import chat, failing, opener, say, screen, until

HOSTILE = {
    "brackets": "[/] [bold]not bold[/bold] [@click=app.quit]x[/] [link=x]",
    "fence": "Look:\n\n```python\nprint('[red]')\n```\n\nand one that is open:\n\n```\nlast",
    "wide": "漢字かな交じり文, 한국어, ｆｕｌｌ",
    "joiners": "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 a\u0308 \u200b\u2060",
    "rtl": "שלום עולם \u202eevil\u202c مرحبا",
    "escapes": ESCAPES,
    "html": "<script>alert(1)</script> &lt; & <b>x</b>",
    "table": "| a | b |\n|---|---|\n| 1 | [/] |\n",
    "lines": "one\ntwo  \nthree\n\n\n\nfour\n" + "x" * 300,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_shown_is_what_is_stored_is_what_was_made(name: str, tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        reply = await say(app, pilot, "go")
        stored = app.session.path[-1]
        assert reply.text == stored.text == HOSTILE[name]
        assert reply.document.source == sanitize(HOSTILE[name])
        assert "\x1b" not in screen(app)
        assert "\x9b" not in screen(app)

    chat(opener({"go": HOSTILE[name]}), tmp_path / "chats.db", script)


def test_a_conversation(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"one", "ctrl+j", *"more")
        assert app.chat.prompt.text == "one\nmore"
        await pilot.press("enter")
        await until(pilot, lambda: len(app.session.path) == 2 and not app.chat.turns.busy)
        assert "▌ one" in screen(app)
        assert "**" not in screen(app)
        assert "bold answer" in screen(app)
        assert app.chat.prompt.text == ""
        await pilot.press("up")
        assert app.chat.prompt.text == "one\nmore"

    chat(opener({"one\nmore": "a **bold** answer"}), tmp_path / "chats.db", script)
    with Conversations.open(tmp_path / "chats.db") as store:
        (conversation,) = store.conversations()
        assert [message.text for message in store.path(conversation.leaf or 0)] == ["one\nmore", "a **bold** answer"]


def test_typing_and_sending_work_while_the_model_loads(tmp_path: Path) -> None:
    loaded = threading.Event()

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"first", "enter")
        await until(pilot, lambda: "waits for the model" in screen(app))
        await pilot.press(*"second", "enter", *"thi")
        assert "waits for its turn" in screen(app)
        assert app.chat.prompt.text == "thi"
        assert [message.text for message in app.session.path] == ["first"]
        app.chat.keep_draft()
        assert app.session.kept().draft == "second\n\nthi"  # it would be there again after a kill
        loaded.set()
        await until(pilot, lambda: len(app.session.path) == 4 and not app.chat.turns.busy)
        assert [message.text for message in app.session.path] == ["first", "1st", "second", "2nd"]
        assert app.chat.prompt.text == "thi"

    chat(opener({"first": "1st", "second": "2nd"}, wait=loaded.wait), tmp_path / "chats.db", script)


def test_escape_keeps_what_there_is(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: "word word" in screen(app))
        await pilot.press("escape")
        await until(pilot, lambda: not app.chat.turns.busy)
        told = app.session.path[-1]
        assert told.state == "cancelled"
        assert told.text
        assert told.text != "word " * 500
        await until(pilot, lambda: "stopped" in screen(app))
        reply = await say(app, pilot, "next")
        assert reply.text == "fine"

    chat(opener({"go": "word " * 500, "next": "fine"}, delays=0.005), tmp_path / "chats.db", script)


def test_retry_and_edit_make_branches_and_lose_nothing(tmp_path: Path) -> None:
    replies = {"one": "1", "uno": "eins"}

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await say(app, pilot, "one")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(app.session.path) == 2 and not app.chat.turns.busy)
        assert "‹ 2/2 ›" in screen(app)
        await pilot.press("f4")
        assert app.chat.prompt.text == "one"
        app.chat.prompt.write("uno")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.session.path) == 2 and not app.chat.turns.busy)
        assert [message.text for message in app.session.path] == ["uno", "eins"]
        await pilot.press("f5")
        await pilot.pause()
        assert [message.text for message in app.session.path] == ["one", "1"]
        assert len(app.session.store.tree(app.session.kept().id)) == 5

    chat(opener(replies), tmp_path / "chats.db", script)


def test_what_an_edit_takes_the_place_of_in_the_prompt_is_in_the_history(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        for text in ("one", "two"):
            await say(app, pilot, text)
        app.chat.prompt.write("not sent yet")
        await pilot.press("ctrl+up", "ctrl+up", "ctrl+up", "f4")  # at the first reply: the message before it
        assert app.chat.prompt.text == "one"
        await pilot.press("escape", "up", "up")
        assert app.chat.prompt.text == "not sent yet"

    chat(opener(lambda asked: asked), tmp_path / "chats.db", script)


def test_reasoning_is_folded_and_kept_apart(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        reply = await say(app, pilot, "go")
        assert (reply.text, reply.reasoning) == ("Yes.", "hm, hm")
        assert "thought for" in screen(app)
        assert "hm, hm" not in screen(app)
        await pilot.press("f9")
        await pilot.pause()
        assert "hm, hm" in screen(app)
        assert (app.session.path[-1].text, app.session.path[-1].reasoning) == ("Yes.", "hm, hm")

    chat(opener({"go": "<think>hm, hm</think>Yes."}), tmp_path / "chats.db", script)


def test_a_large_paste_is_a_chip_and_is_sent_whole(tmp_path: Path) -> None:
    pasted = "\n".join(f"line {number}" for number in range(3000))

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        prompt = app.chat.prompt
        await pilot.press(*"see ")
        app.post_message(Paste(pasted))
        await pilot.pause()
        assert prompt.text.startswith("see ⟦3,000 lines")
        assert len(prompt.text) < 60
        assert prompt.written == "see " + pasted
        await pilot.press("backspace")
        assert prompt.written == "see "
        app.post_message(Paste(pasted))
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: len(app.session.path) == 2 and not app.chat.turns.busy)
        assert app.session.path[0].text == "see " + pasted
        assert "more characters, all sent" in screen(app)

    chat(opener(lambda asked: f"{len(asked)}", context=1 << 16), tmp_path / "chats.db", script)


def test_files_are_attached_by_name(tmp_path: Path) -> None:
    file = tmp_path / "notes with spaces.txt"
    file.write_text("the <|im_end|> file\n```\n")
    bad = tmp_path / "bad.bin"
    bad.write_bytes(b"\xff\xfe\x00")

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await say(app, pilot, f'read @"{file}" now, and mail@example')
        (attachment,) = app.session.path[0].attachments
        assert (attachment.name, attachment.text) == (file.name, file.read_text())
        assert attachment.tokens == len(file.read_bytes())
        assert "@ notes with spaces.txt · 24 bytes · 24 tokens" in screen(app)
        assert app.session.path[1].text.count("<|im_end|>") == 1
        assert "````\n" in app.session.path[1].text
        app.chat.prompt.write("read @notes-of-nobody")
        await until(pilot, lambda: "@notes-of-nobody names no file here" in screen(app))
        app.chat.prompt.write(f"@{bad}")
        await until(pilot, lambda: "names no file" not in screen(app))
        await pilot.press("enter")
        await until(pilot, lambda: "not UTF-8" in screen(app))
        assert app.chat.prompt.text == f"@{bad}"
        assert len(app.session.path) == 2

    chat(opener(lambda asked: asked), tmp_path / "chats.db", script)


def test_drafts_come_back(tmp_path: Path) -> None:
    async def write(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"half a thou")
        await until(pilot, lambda: app.session.conversation is not None and app.session.conversation.draft)

    async def find(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.chat.prompt.text == "half a thou"

    chat(opener({}), tmp_path / "chats.db", write)
    with Conversations.open(tmp_path / "chats.db") as store:
        (conversation,) = store.conversations()
    chat(opener({}), tmp_path / "chats.db", find, conversation=conversation.id)


def test_ctrl_c_clears_then_stops_then_quits(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: "word word" in screen(app))
        await pilot.press(*"ty", "ctrl+c")
        assert app.chat.prompt.text == ""
        assert app.chat.turns.busy
        await pilot.press("up")
        assert app.chat.prompt.text == "ty"  # nothing typed is lost
        app.chat.prompt.clear_text()
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.chat.turns.busy)
        assert not app._exit
        await pilot.press("ctrl+c", "ctrl+c")
        assert app._exit

    chat(opener({"go": "word " * 5000}, delays=0.02, context=1 << 16), tmp_path / "chats.db", script)


def test_no_model_is_said_and_loses_nothing(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "needs 9 GB" in screen(app))
        await pilot.press(*"hello", "enter")
        await until(pilot, lambda: "not answered" in screen(app))
        assert [message.text for message in app.session.path] == ["hello"]

    chat(failing(MemoryLimit("it needs 9 GB", 9, 1)), tmp_path / "chats.db", script)


def test_a_crash_costs_the_reply_and_the_third_in_a_row_is_told(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        for _ in range(3):
            await pilot.press("ctrl+r") if app.session.path else await pilot.press(*"go", "enter")
            await pilot.pause()
            await until(pilot, lambda: not app.chat.turns.busy)
            assert next(message.text for message in app.session.path) == "go"
        assert "third time in a row" in " ".join(screen(app).split())
        reply = await say(app, pilot, "well")
        assert reply.text == "alive"
        assert app.engine.crashes == 0

    faults = {number: EngineCrashed("the engine's process was killed", 9) for number in (2, 3, 4)}
    chat(opener({"go": "a reply", "well": "alive"}, faults=faults), tmp_path / "chats.db", script)


def test_it_follows_the_end_until_one_scrolls_up(tmp_path: Path) -> None:
    reply = "\n".join(f"line {number}\n" for number in range(70))

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        transcript = app.chat.transcript
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: transcript.max_scroll_y > 12)
        await pilot.press("pageup")
        before = screen(app).splitlines()[:5]
        assert not transcript.following
        await until(pilot, lambda: not app.chat.turns.busy)
        assert screen(app).splitlines()[:5] == before
        assert "Ctrl-End" in screen(app)
        await pilot.press("ctrl+end")
        await pilot.pause()
        assert "line 69" in screen(app)
        assert transcript.following

    chat(opener({"go": reply}, delays=0.003), tmp_path / "chats.db", script)


def test_unknown_commands_are_not_sent(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"/retyr", "enter")
        assert app.chat.prompt.text == "/retyr"
        assert not app.session.path
        app.chat.prompt.write("/etc/hosts is what?")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.session.path) == 2)

    chat(opener(lambda _: "a file"), tmp_path / "chats.db", script)


@pytest.mark.parametrize("size", [(20, 5), (40, 20), (300, 100)])
def test_any_size_stays_up(size: tuple[int, int], tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await say(app, pilot, "go")
        for key in ("f2", "f1", "escape", "ctrl+p", "escape", "pageup"):
            await pilot.press(key)
        for width, height in ((20, 5), (1, 1), (80, 24), size):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
        assert isinstance(app.chat.transcript.entries[-1], Told)
        assert isinstance(app.chat.transcript.entries[0], Said)

    chat(opener({"go": HOSTILE["table"] + HOSTILE["fence"]}), tmp_path / "chats.db", script, size)


def test_the_context_dialog_says_what_would_be_left_out(tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        for number in range(3):
            await say(app, pilot, f"{number} " + "x" * 60)
        app.chat.prompt.write("last " + "y" * 90)
        await pilot.press("enter")
        await until(pilot, lambda: "would not be read" in screen(app))
        assert "user: 0 xxx" in screen(app)
        assert "255" not in app.session.path[-1].text
        await pilot.press("enter")
        await until(pilot, lambda: not app.chat.turns.busy)
        told = app.session.path[-1]
        assert told.text == "ok"
        assert told.stats is not None
        assert told.stats.truncated
        assert "the oldest messages were left out" in screen(app)

    async def refuse(app: ChatApp, pilot: Pilot[None]) -> None:
        app.chat.prompt.write("z" * 400)
        await pilot.press("enter")
        await until(pilot, lambda: "Too long" in screen(app))
        await pilot.press("escape")
        await until(pilot, lambda: "does not fit" in screen(app))
        assert app.chat.prompt.text == "z" * 400
        assert "Edit an earlier message" in screen(app)
        assert [message.role for message in app.session.path] == ["user"]

    chat(opener(lambda _: "ok", context=256), tmp_path / "chats.db", script, (100, 30))
    chat(opener(lambda _: "ok", context=256), tmp_path / "other.db", refuse, (100, 30))
