"""The pictures of the README: the app itself, on a conversation that was recorded with the starter model."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeinfer.app.app import ChatApp, Options
from edgeinfer.app.conversations import Conversations
from edgeinfer.app.conversations.imports import import_file
from edgeinfer.app.engine import Opener, Wanted, open_model

SIZE = (100, 30)
PICTURES = {"chat": None, "models": "models", "tree": "tree"}
"""By the name of the file, the screen that is opened."""
_SECONDS = 60.0  # that the model may take to load


def take(folder: Path, wanted: Wanted, opener: Opener = open_model) -> list[Path]:
    """Writes an SVG file of each screen into ``folder``. Raises OSError where that cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch, Conversations.open(Path(scratch) / "chats.db") as store:
        demo = Path(str(files("edgeinfer.app.screenshots").joinpath("demo.json")))
        [conversation] = import_file(store, demo).conversations
        return asyncio.run(_take(folder, ChatApp(store, Options(wanted, conversation), opener)))


async def _take(folder: Path, app: ChatApp) -> list[Path]:
    written = []
    async with app.run_test(size=SIZE) as pilot:
        async with asyncio.timeout(_SECONDS):
            while not app.engine.llm and not app.trouble:
                await asyncio.sleep(0.05)
        for name, screen in PICTURES.items():
            if screen is not None:
                app.open_screen(screen)
            await asyncio.sleep(2)  # the figures, the disk and the memory are read in threads
            await pilot.pause()
            file = folder / f"{name}.svg"
            file.write_text(app.export_screenshot(title=f"edgeinfer {name}"), encoding="utf-8", newline="\n")
            written.append(file)
            if screen is not None:
                await app.pop_screen()
    return written
