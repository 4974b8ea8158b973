"""The starter model in a real terminal multiplexer; its screens are kept as text beside this file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.terminal import ROOT, app_on_tape

KEPT = Path(__file__).parent / "screens"
SECONDS = 120


class Tmux:
    """One window of a server of its own."""

    def __init__(self, socket: Path, command: str, columns: int, rows: int) -> None:
        self._socket = str(socket)
        self.run("-f", os.devnull, "new-session", "-d", "-x", str(columns), "-y", str(rows), command)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    @property
    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self.run("capture-pane", "-p").splitlines())

    def until(self, text: str) -> str:
        end = time.monotonic() + SECONDS
        while text not in (screen := self.screen):
            assert time.monotonic() < end, f"{text!r} did not come:\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def window(tmp_path: Path, smollm2_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.fail("tmux is not installed; .ci/run installs it from Debian", pytrace=False)
    home = tmp_path / "home"
    home.mkdir()
    (home / "chat.toml").write_text("[sampling]\ntemperature = 0\n")
    command = f"EDGEINFER_HOME={home} {sys.executable} -m edgeinfer chat {smollm2_path}"
    tmux = Tmux(tmp_path / "tmux", command, 80, 24)
    yield tmux
    tmux.run("kill-server")


def same(name: str, screen: str, rows: int = -1) -> None:
    """The first rows of a screen as they are kept, figures that depend on the machine left out."""
    shown = re.sub(r"\d[\d.,]* (tok/s|s|MB|GB)\b", r"# \1", screen)
    shown = re.sub(r" +\S+\.gguf|SmolLM2[^ ]*", " MODEL", shown)
    shown = re.sub(r"( +)\W?# (tok/s|s|MB|GB)\b", r" # \2", shown)  # which move when they have more digits
    shown = re.sub(r"\bfits\b|too big|will not fit", "MEMORY", shown)
    file = KEPT / f"{name}.txt"
    if os.environ.get("TAKE_SCREENS"):
        KEPT.mkdir(exist_ok=True)
        file.write_text(shown + "\n", encoding="utf-8")
    assert shown.splitlines()[:rows] == file.read_text(encoding="utf-8").splitlines()[:rows]


@pytest.fixture
def taped(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.fail("tmux is not installed; .ci/run installs it from Debian", pytrace=False)
    home = tmp_path / "home"
    home.mkdir()
    command = shlex.join(app_on_tape(home / "chats.db", "markdown", 0.001))
    place = f"cd {ROOT} && unset COLUMNS LINES && HOME={home} EDGEINFER_HOME={home}"
    tmux = Tmux(tmp_path / "tmux", f"{place} {command}", 110, 34)
    yield tmux
    tmux.run("kill-server")


def test_screens_on_a_tape(taped: Tmux) -> None:
    """A reply, the same once more, the tree of both, and the models of an empty home."""
    taped.until("tape none")
    taped.keys("-l", "Explain it, with [brackets] and 宽的字符.")
    taped.keys("Enter")
    taped.until("first after")
    taped.keys("C-r")
    taped.until("‹ 2/2 ›")
    same("chat", taped.until("F1 help"))
    taped.keys("C-t")
    taped.until("go to")
    same("tree", taped.until("reused"))
    taped.keys("Escape")
    taped.until("‹ 2/2 ›")
    taped.keys("F3")
    taped.until("model ")
    same("models", taped.until("tok/s  "), rows=18)
    taped.keys("Escape")
    taped.until("‹ 2/2 ›")
    taped.keys("C-q")


@pytest.mark.real_model
def test_the_starter_model_answers(window: Tmux) -> None:
    window.until("Q4_1")
    same("ready", window.screen)
    window.keys("-l", "Write a Python function that reverses a list.")
    window.keys("Enter")
    window.until("first after")
    screen = window.screen
    assert "▌ Write a Python function that reverses a list." in screen
    assert "return" in screen
    assert "ctx" in screen
    window.keys("F1")
    assert "Ctrl-R  /retry" in window.until("Keys and commands")
    window.keys("Escape")
    window.until("tok/s")
    window.keys("C-q")
