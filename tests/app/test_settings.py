"""The settings screen, and what the user's files do to the app, on a tape."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.app import ChatApp
from edgeinfer.app.screens.ask import Ask, Choose
from edgeinfer.app.screens.settings import SettingsScreen
from edgeinfer.settings import load_settings
from tests.app.test_screens import opened
from tests.app.world import chat, opener, screen, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def test_a_setting_is_changed_kept_and_reset(path: Path, tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "f10")
        assert isinstance(found, SettingsScreen)
        await pilot.press(*"temperature")
        await until(pilot, lambda: found.chosen == "sampling.temperature")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("ctrl+u", *"101", "enter")
        await pilot.pause()
        assert "expected 0 to 100" in " ".join(screen(app).split())
        await pilot.press("ctrl+u", *"0.25", "enter")
        await until(pilot, lambda: app.session.params.get("temperature") == 0.25)
        assert "temperature = 0.25" in (tmp_path / "chat.toml").read_text()
        await until(pilot, lambda: app.screen is found)
        await pilot.press("f8")
        await until(pilot, lambda: "temperature" not in app.session.params)

    chat(opener({}), path, script, folder=tmp_path)


def test_a_theme_is_tried_and_taken(path: Path, tmp_path: Path) -> None:
    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        found = await opened(app, pilot, "f10")
        await pilot.press(*"theme", "enter")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        assert app.theme == "edgeinfer-dark"
        await pilot.press("down")
        await until(pilot, lambda: app.theme == "edgeinfer-light")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is found and app.theme == "edgeinfer-dark")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("up", "enter")
        await until(pilot, lambda: app.theme == "edgeinfer-colour-blind")
        await until(pilot, lambda: (tmp_path / "chat.toml").exists())

    chat(opener({}), path, script, folder=tmp_path)


def test_a_key_is_set_anew(path: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('panel = "ctrl+g"\nnonsense = 3\n')

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "keys.toml, line 2: unknown key 'nonsense'" in " ".join(screen(app).split())
        figures = app.chat.query_one("#figures")
        await pilot.press("ctrl+g")
        assert figures.display
        await pilot.press("f2")
        assert figures.display  # no longer its key
        found = await opened(app, pilot, "f10")
        await pilot.press(*"figures", "enter")
        await pilot.pause()
        await pilot.press("ctrl+y")
        await until(pilot, lambda: "Ctrl-Y" in screen(app))
        assert app.screen is found
        await pilot.press("escape", "ctrl+y")
        assert not figures.display

    chat(opener({}), path, script, folder=tmp_path)


def test_mistakes_in_every_file_leave_the_app_up(path: Path, tmp_path: Path) -> None:
    (tmp_path / "themes").mkdir()
    for file in ("chat.toml", "keys.toml", "presets.toml", "themes/mine.toml"):
        (tmp_path / file).write_text("= nothing\n")

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        text = " ".join(screen(app).split())
        for file in ("chat.toml", "keys.toml", "presets.toml", "themes/mine.toml"):
            assert f"{file}, line 1" in text
        await opened(app, pilot, "f10")

    chat(opener({}), tmp_path / "fresh.db", script, (120, 40), folder=tmp_path)


def test_what_is_kept_on_disk_is_set_for_every_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('model = "smollm2-135m"  # mine\n')

    async def script(app: ChatApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.engine.llm)
        before = app.engine.llm
        found = await opened(app, pilot, "f10")
        await pilot.press(*"contexts")
        await until(pilot, lambda: found.chosen == "shared.keep_kv")
        assert "can work out what was said" in " ".join(screen(app).split())
        await pilot.press("enter")
        await until(pilot, lambda: load_settings().keep_kv)
        assert load_settings().model == "smollm2-135m"
        await until(pilot, lambda: app.engine.llm not in (None, before))
        await pilot.press("f8")
        await until(pilot, lambda: not load_settings().keep_kv)
        assert (tmp_path / "config.toml").read_text() == 'model = "smollm2-135m"  # mine\n'

    chat(opener({}), path, script, folder=tmp_path)
