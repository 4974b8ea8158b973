"""What the app promises in figures; each is printed (``-s`` shows it), its bound is wide for busy machines."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from textual.pilot import Pilot

from edgeinfer.app.actions import ACTIONS, SCREENS
from edgeinfer.app.app import ChatApp
from edgeinfer.app.conversations import Conversations
from tests.app.terminal import MARKDOWN, Terminal, app_on_tape
from tests.app.test_terminal import messages, ready, sent
from tests.app.world import chat, opener, screen

TURNS = 500
DRAFT = 16  # tokens that may have been proposed beyond those that were made


@pytest.mark.parametrize("name", ["chat", *(other for other in SCREENS if other != "help")])
def test_no_two_actions_of_a_screen_have_the_same_key(name: str) -> None:
    rows = [action for action in ACTIONS if action.screen in (name, "app")]
    keys = Counter(key for action in rows for key in action.key.split(",") if key)
    assert [key for key, times in keys.items() if times > 1] == []


def test_no_two_actions_have_the_same_name_or_command() -> None:
    assert len({action.name for action in ACTIONS}) == len(ACTIONS)
    assert max(Counter(action.slash for action in ACTIONS if action.slash).values()) == 1


def test_a_stop_is_quick_and_keeps_what_there_is(tmp_path: Path) -> None:
    times = []
    with Terminal(app_on_tape(tmp_path / "chats.db", "long", 0.02), (80, 50)) as terminal:
        ready(terminal)
        for stop in range(5):
            sent(terminal, f"question {stop}")
            terminal.until(lambda: "Esc stops" in terminal.text and "heading" in terminal.text)
            time.sleep(0.2)
            terminal.type("\x03")  # Esc alone waits for what may follow it
            start = time.monotonic()
            terminal.until(lambda: "Esc stops" not in terminal.text)
            times.append(time.monotonic() - start)
    print(f"stopped after {', '.join(f'{1000 * one:.0f}' for one in sorted(times))} ms")
    assert sorted(times)[2] < 1
    assert all(text for role, text, _ in messages(tmp_path / "chats.db") if role == "assistant")


def test_at_most_two_seconds_of_a_reply_are_lost(tmp_path: Path) -> None:
    """What is stored is held against what the engine's own log says it had made two seconds before the kill."""
    log = tmp_path / "log"
    with Terminal(app_on_tape(tmp_path / "chats.db", "long", 0.01), (80, 60), {"TAPE_LOG": str(log)}) as terminal:
        ready(terminal)
        sent(terminal, "question")
        terminal.until(lambda: "heading" in terminal.text)
        made = time.monotonic()
        while time.monotonic() - made < 5:
            terminal.read(0.05)
        killed = time.time()
        terminal.kill()
    (_, (_, text, state)) = messages(tmp_path / "chats.db")
    steps = [(float(when), int(tokens)) for when, tokens in map(str.split, log.read_text().splitlines())]
    prompt = min(tokens for _, tokens in steps)
    there, then = (max(tokens for when, tokens in steps if when <= killed - seconds) - prompt for seconds in (0.0, 2.0))
    print(f"made {there} tokens, {then} of them two seconds before the kill; stored {len(text.encode())}")
    assert state == "streaming"
    assert (MARKDOWN * 200).startswith(text)
    assert then > 40
    assert len(text.encode()) + DRAFT >= then
    with Conversations.open(tmp_path / "chats.db") as store:  # the next start tells
        assert store.message(2).state == "cancelled"


def test_memory_is_flat_over_many_turns(tmp_path: Path) -> None:
    process, sizes = psutil.Process(), list[int]()

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        for turn in range(TURNS):
            app.chat.turns.take(f"turn {turn}")
            while app.chat.turns.busy or len(app.session.path) < 2 * turn + 2:
                await asyncio.sleep(0.002)
            if turn % 100 == 99:
                sizes.append(process.memory_info().rss)
        await pilot.pause()
        assert f"turn {TURNS - 1}" in screen(app)

    chat(opener(lambda asked: f"**{asked}**", context=1 << 17), tmp_path / "chats.db", script)
    print("MB after each hundred turns:", [round(size / 1e6) for size in sizes])
    assert sizes[-1] - sizes[0] < 40 * 10**6


def test_a_megabyte_is_pasted_in_a_real_terminal(tmp_path: Path) -> None:
    pasted = "".join(f"line {number:06} of a long file\n" for number in range(39_000))
    assert len(pasted) > 1 << 20
    with Terminal(app_on_tape(tmp_path / "chats.db", "here:short")) as terminal:
        ready(terminal)
        start = time.monotonic()
        terminal.type(f"\x1b[200~{pasted}\x1b[201~")
        terminal.until(lambda: "⟦39,001 lines" in terminal.text)
        print(f"a paste of {len(pasted):,} bytes took {time.monotonic() - start:.2f} s")
        terminal.type(" and?\r")
        terminal.until(lambda: "all sent" in terminal.text)
        terminal.type("\x11")
        assert terminal.wait() == 0
    assert messages(tmp_path / "chats.db")[0][1] == pasted + " and?"


def test_a_transcript_of_100_000_tokens_scrolls(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "chats.db") as store:
        found, last = store.start(), None
        for turn in range(50):
            asked = store.add(found.id, last, "user", f"question {turn}")
            last = store.add(found.id, asked.id, "assistant", MARKDOWN * 70, state="done").id
    times = []

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        characters = sum(len(message.text) for message in app.session.path)
        assert characters > 400_000  # four a token
        for key in ["pageup"] * 30 + ["pagedown"] * 10 + ["ctrl+end"]:
            start = time.perf_counter()
            await pilot.press(key)
            times.append(time.perf_counter() - start)
        assert app.chat.transcript.following

    chat(opener({}), tmp_path / "chats.db", script, conversation=found.id)
    times.sort()
    print(f"a page takes {1000 * times[len(times) // 2]:.0f} ms, {1000 * times[-1]:.0f} at most")
    assert times[len(times) // 2] < 0.5


def test_inline_stays_below_the_prompt_of_the_shell(tmp_path: Path) -> None:
    with Terminal(app_on_tape(tmp_path / "chats.db", "echo", 0.0, "inline")) as terminal:
        ready(terminal)
        sent(terminal, "hello there")
        terminal.until(lambda: "first after" in terminal.text)
        terminal.type("\x11")
        assert terminal.wait() == 0
    assert b"?1049h" not in terminal.raw
    assert messages(tmp_path / "chats.db")[1][1] == "hello there"


BROKEN = """
import sys
from edgeinfer.__main__ import main
from edgeinfer.app.screens.chat import ChatScreen

def show_branch(self):
    raise ValueError("the screen is broken")

ChatScreen.show_branch = show_branch
sys.argv = ["edgeinfer", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_the_app_is_a_line_and_a_report(debug: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKEN, "chat", *(["--debug"] if debug else [])]
    with Terminal(command, (200, 50), {"EDGEINFER_HOME": str(tmp_path)}) as terminal:
        assert terminal.wait() == 1
        report = tmp_path / "chat-failed.txt"
        assert "the app failed (ValueError: the screen is broken); everything that was said is kept" in terminal.text
        assert os.fspath(report) in terminal.text.replace("\n", "")
        assert ("Traceback" in terminal.text) == debug
    assert "in show_branch" in report.read_text()
