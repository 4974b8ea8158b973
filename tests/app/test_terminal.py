"""The app under a real terminal: the bytes that it writes, what a kill leaves, and the plain mode."""

from __future__ import annotations

import random
import re
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.app.terminal import MARKDOWN, Terminal, app_on_tape
from tests.app.test_chat import HOSTILE

KILLS = 20

_CSI = re.compile(rb"\x1b\[[0-9;:?<>=]*[a-zA-Z~$]|\x1b\[\?[0-9;]*\$p|\x1b[=>78]|\x1b\(B|\x1bP\+q[0-9a-f;]*\x1b\\")


def ready(terminal: Terminal) -> None:
    terminal.until(lambda: "tape none" in terminal.text)


def sent(terminal: Terminal, text: str) -> None:
    terminal.type(text)
    terminal.until(lambda: text[-8:] in terminal.text)
    terminal.type("\r")


def messages(store: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(store)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return database.execute("SELECT role, text, state FROM messages ORDER BY id").fetchall()


def test_no_byte_of_a_model_commands_the_terminal(tmp_path: Path) -> None:
    """The reply sets titles, the clipboard and colours; all of it is seen, none of it obeyed."""
    with Terminal(app_on_tape(tmp_path / "chats.db", "hostile"), (100, 30)) as terminal:
        ready(terminal)
        start = len(terminal.raw)
        sent(terminal, "go now please")
        terminal.until(lambda: "first after" in terminal.text)
        assert "␛]52;c;aGk=␇" in terminal.text
        assert "␛[31mred" in terminal.text
        assert "\\u{9b}2J" in terminal.text
        terminal.type("\x11")
        assert terminal.wait() == 0
        written = terminal.raw[start:]
        assert b"\x1b" not in _CSI.sub(b"", written)
        assert b"]52;" not in _CSI.sub(b"", written).replace("␛]52;".encode(), b"")
        assert not set(_CSI.sub(b"", written)) & (set(range(32)) - {10, 13})
        assert "\x9b" not in written.decode()
    assert messages(tmp_path / "chats.db")[1][1] == HOSTILE["escapes"]


def test_killed_at_random_moments_it_loses_nothing_that_was_sent(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance, store = random.Random(seed), tmp_path / "chats.db"
    whole = MARKDOWN * 200
    for kill in range(KILLS):
        with Terminal(app_on_tape(store, "here:long", 0.002)) as terminal:
            ready(terminal)
            sent(terminal, f"question {kill:02}")
            terminal.until(lambda: "reads" in terminal.text or "heading" in terminal.text)
            shown = time.monotonic()
            while time.monotonic() - shown < chance.uniform(0, 1.5):
                terminal.read(0.02)
            terminal.kill()
        found = messages(store)
        assert [text for role, text, _ in found if role == "user"][-1] == f"question {kill:02}"
        assert sum(role == "user" for role, _, _ in found) == kill + 1
        assert all(whole.startswith(text) for role, text, _ in found if role == "assistant")


def test_a_killed_model_costs_its_reply_and_comes_back(tmp_path: Path) -> None:
    with Terminal(app_on_tape(tmp_path / "chats.db", "long", 0.02)) as terminal:
        ready(terminal)
        sent(terminal, "question one")
        terminal.until(lambda: "heading" in terminal.text)
        (child,) = psutil.Process(terminal.process.pid).children()
        child.kill()
        terminal.until(lambda: "was killed" in " ".join(terminal.text.split()))
        terminal.type("\x12")  # Ctrl-R
        terminal.until(lambda: "was killed" not in terminal.text and "heading" in terminal.text)
        terminal.type("\x1b")
        terminal.until(lambda: "stopped" in terminal.text)
    states = [state for role, _, state in messages(tmp_path / "chats.db") if role == "assistant"]
    assert states == ["error", "cancelled"]


def test_no_colour_means_none(tmp_path: Path) -> None:
    with Terminal(app_on_tape(tmp_path / "chats.db"), env={"NO_COLOR": "1"}) as terminal:
        ready(terminal)
        sent(terminal, "# hello you")
        terminal.until(lambda: "first after" in terminal.text)
        for colour in re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)m", terminal.raw):
            assert len(set(colour)) == 1, "a grey has three equal parts"


@pytest.mark.parametrize("size", [(20, 5), (40, 20), (120, 40)])
def test_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    with Terminal(app_on_tape(tmp_path / "chats.db"), size) as terminal:
        terminal.until(lambda: "tape" in terminal.text)
        terminal.type("hello\r")
        terminal.until(lambda: ("assistant", "hello", "done") in messages(tmp_path / "chats.db"))
        terminal.until(lambda: "hello" in terminal.text or size[0] == 20)
        terminal.type("\x11")
        assert terminal.wait() == 0


@pytest.mark.real_model
def test_plain_mode_writes_lines_and_nothing_else(smollm2_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgeinfer", "chat", "--plain", str(smollm2_path)]
    with Terminal(command, env={"EDGEINFER_HOME": str(tmp_path)}) as terminal:
        terminal.until(lambda: "You:" in terminal.text)
        terminal.type("Say one word.\n")
        terminal.until(lambda: "tok/s" in terminal.text)
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw.replace(b"\x1b[?2004h", b"").replace(b"\x1b[?2004l", b"")  # readline's own
    assert [role for role, _, _ in messages(tmp_path / "chats.db")] == ["user", "assistant"]


def test_a_simple_terminal_gets_the_plain_mode(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgeinfer", "chat", "nothing-of-that-name"]
    with Terminal(command, env={"TERM": "dumb", "EDGEINFER_HOME": str(tmp_path)}) as terminal:
        assert terminal.wait() == 2
        assert "line by line" in terminal.text
        assert b"\x1b" not in terminal.raw
