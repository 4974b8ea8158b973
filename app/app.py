"""The application: it owns the model, the conversations and the keys; screens do the rest."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen
from textual.theme import Theme

from edgeinfer.app.actions import ACTIONS, SCREENS, Action, bindings
from edgeinfer.app.clipboard import copy_by_program
from edgeinfer.app.config.preferences import Preferences, load_preferences
from edgeinfer.app.config.themes import DEFAULT, load_themes
from edgeinfer.app.conversations import Conversations
from edgeinfer.app.engine import Engine, Opener, Wanted, in_thread, open_model
from edgeinfer.app.screens.chat import ChatScreen
from edgeinfer.app.session import ANSWER_TOKENS, Session
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.command import Provider

    from edgeinfer.llm import Progress

FIRST_SECONDS = 0.05
"""Before the model is loaded, so that the prompt comes first."""
QUIT_SECONDS = 1.0
"""Within which a second Ctrl-C quits."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; empty values are the user's settings."""

    wanted: Wanted = field(default_factory=Wanted)
    conversation: int | None = None  # to go on with; None begins a new one
    prompt: str = ""  # to begin with, not sent
    folder: Path = Path(os.devnull)  # of the user's settings; this one holds none


class ChatApp(App[None]):
    """``edgeinfer chat``."""

    TITLE = "edgeinfer"
    CSS_PATH: ClassVar[str] = "app.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {lambda: _palette()}
    BINDINGS: ClassVar[list[BindingType]] = bindings("app")
    NOTIFICATION_TIMEOUT = 6

    def __init__(self, store: Conversations, options: Options | None = None, opener: Opener = open_model) -> None:
        super().__init__()
        self.options = options or Options()
        self.preferences = Preferences(self.options.folder)
        self.themes: dict[str, Theme] = {}  # ours and the user's
        self.engine = Engine(opener)
        self.session = Session(store, self.engine)
        self.leaving: list[Callable[[], None]] = []  # what is to be done as the app ends
        self.model_line = ""
        self.trouble = ""  # why there is no model
        self.memory = 0
        self.speed = self.first = 0.0  # of the last reply
        self.fault: Exception | None = None  # of our own, that ended the app
        self._loaded = asyncio.Event()  # or failed
        self._interrupted = 0.0
        self._styled = False
        self._wrong = self.apply_preferences()  # before anything is drawn, so that it is drawn once
        self.stylesheet.set_variables(self.get_css_variables())

    async def on_mount(self) -> None:
        draft = self._begin()
        self.chat = ChatScreen(self.session)
        await self.push_screen(self.chat)
        self.chat.prompt.write(draft)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        if notice := self.session.store.notice:
            self.chat.complain(notice)
        for problem in self._wrong:
            self.chat.complain(problem)
        self.set_timer(FIRST_SECONDS, self._loading)

    def _loading(self) -> None:
        """Once the prompt is there: memory is looked after again (see cli/chat.py), and the model is loaded."""
        gc.freeze()
        gc.enable()
        self.load(self.options.wanted)

    def _begin(self) -> str:
        """The conversation to go on with, and what was typed but not sent."""
        store, wanted = self.session.store, self.options.conversation
        unsent = store.unsent() if wanted is None else None
        if wanted is None and unsent is not None:
            wanted = unsent.id
        if wanted is not None:
            self.session.open(wanted)
        draft = self.session.conversation.draft if self.session.conversation else ""
        return self.options.prompt or draft

    def get_theme(self, theme_name: str) -> Theme | None:
        """The base class makes a dictionary of all themes, and is asked for each line that is drawn."""
        return self._registered_themes.get(theme_name) or super().get_theme(theme_name)

    def refresh_css(self, animate: bool = True) -> None:
        """The base class parses every style again for the first theme, which they were just parsed with."""
        if self._styled:
            super().refresh_css(animate)
        else:
            self._styled = True
            self.stylesheet.update(self, animate=False)

    def _handle_exception(self, error: Exception) -> None:
        """The base class prints pages about a fault; here the command line says it in a line."""
        self.fault = self.fault or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def on_unmount(self) -> None:
        self.engine.stop()
        for leave in self.leaving:
            leave()

    # The model

    @work(group="load", exclusive=True)
    async def load(self, wanted: Wanted) -> None:
        """Loads a model in the background; messages wait for it."""
        self._loaded.clear()
        name = wanted.model or "the model"
        self._say(f"loading {name} …")
        loop = asyncio.get_running_loop()

        def on_progress(found: Progress) -> None:
            loop.call_soon_threadsafe(self._fetching, found)

        try:
            llm = await self.engine.load(wanted, on_progress)
        except EdgeInferError as error:
            self.trouble = str(error)
            self._say("no model")
            self.chat.complain(f"No model: {error}")
        else:
            self.trouble = ""
            self.speed = self.first = 0.0
            self._use_sampling()
            info = llm.info
            self._say(f"{llm.name} {info.quantization} · {info.backend} {info.device}")
        finally:
            self._loaded.set()

    def reload(self, model: str = "", context: int | None = None, kv: str = "") -> None:
        """Loads another model, or the same with another context or format of keys and values; the chat stays."""
        wanted = self.engine.wanted
        template = wanted.template if model in ("", wanted.model) else ""
        found = replace(wanted, model=model or wanted.model, context=context, kv=kv or wanted.kv, template=template)
        self.load(found)

    def use_model(self, model: str) -> None:
        """Switches models; the conversation goes on with the new one."""
        self.reload(model)
        if (conversation := self.session.conversation) is not None:
            self.session.store.use_model(conversation.id, model)

    async def ready(self) -> bool:
        """Waits until there is a model; False where none could be loaded."""
        await self._loaded.wait()
        return self.engine.llm is not None

    def _fetching(self, progress: Progress) -> None:
        share = f" {100 * progress.done // progress.total}%" if progress.total else ""
        self._say(f"fetching {progress.file}{share}")

    def _say(self, line: str) -> None:
        self.model_line = line
        if self.chat.is_mounted:
            self.chat.show_figures()

    # Settings

    @property
    def model_name(self) -> str:
        return self.engine.llm.name if self.engine.llm else self.engine.wanted.model or self.options.wanted.model

    def apply_preferences(self) -> list[str]:
        """Reads the files of settings and does what they say. Returns what is wrong with them, a line each."""
        folder = self.options.folder
        self.preferences = load_preferences(folder, [action.name for action in ACTIONS])
        self.themes, problems = load_themes(folder)
        for theme in self.themes.values():
            self.register_theme(theme)
        wanted = self.preferences.theme or DEFAULT
        if wanted not in self.available_themes:
            problems.append(f"chat.toml: no theme {wanted!r:.60}; /settings lists them")
            wanted = DEFAULT
        self.theme = wanted
        self.set_keymap(self.preferences.keys)
        self._use_sampling()
        return [*self.preferences.problems, *problems]

    def _use_sampling(self) -> None:
        """The sampling and system prompt of the preset that fits the model."""
        self.session.params = {"max_tokens": ANSWER_TOKENS, **self.preferences.sampling_for(self.model_name)}
        self.session.system = self.preferences.system_for(self.model_name)

    # Actions

    @work(group="copy")
    async def copy(self, text: str, what: str) -> None:
        """Copies by the system's program and through the terminal, and says which."""
        self.copy_to_clipboard(text)
        program = await in_thread(lambda: copy_by_program(text))
        self.notify(f"Copied {what} ({program or 'through the terminal'}).", markup=False)

    def perform(self, action: Action, argument: str = "") -> None:
        """Does what a row of the registry says, from wherever it was chosen."""
        if action.opens:
            self.open_screen(action.opens)
            return
        owners = {"app": self, "chat": self.chat}  # another screen may have come on top of the chat since it was typed
        method = getattr(owners.get(action.screen, self.screen), f"action_{action.method}")
        self.call_next(method, argument) if action.takes else self.call_next(method)

    def open_screen(self, name: str) -> None:
        """Puts a screen of the table on top; it is imported now."""
        module, _, kind = SCREENS[name].partition(":")
        screen: type[Screen[object]] = getattr(import_module(module), kind)
        if not isinstance(self.screen, screen):
            self.push_screen(screen())

    def action_open_screen(self, name: str) -> None:
        self.open_screen(name)

    async def action_quit(self) -> None:
        self.chat.keep_draft()
        self.exit()

    def action_interrupt(self) -> None:
        """Ctrl-C: copies what is selected; clears the prompt; stops the reply; twice in a second: quits."""
        if text := self.screen.get_selected_text():
            self.copy(text, f"{len(text):,} characters")
            self.screen.clear_selection()
            return
        if isinstance(self.screen, ChatScreen) and self.screen.interrupt():
            return
        now = time.monotonic()
        if now - self._interrupted < QUIT_SECONDS:
            self.chat.keep_draft()
            self.exit()
        self._interrupted = now
        self.notify("Press Ctrl-C once more to quit.", timeout=QUIT_SECONDS)


def _palette() -> type[Provider]:
    from edgeinfer.app.palette import Palette

    return Palette
