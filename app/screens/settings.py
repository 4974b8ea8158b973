"""Settings: system prompt, preset, theme, sampling and keys, each with what it does; changes go to TOML files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import BindingType
from textual.widgets.option_list import Option

from edgeinfer.app.actions import ACTIONS, bindings
from edgeinfer.app.config import sampling
from edgeinfer.app.config.preferences import AUTO, SHARED
from edgeinfer.app.config.themes import DEFAULT
from edgeinfer.app.render.rows import row
from edgeinfer.app.screens.ask import Ask, Choose, PressKey, Write
from edgeinfer.app.screens.help import key_name
from edgeinfer.app.screens.picker import Picker
from edgeinfer.app.session import ANSWER_TOKENS
from edgeinfer.errors import EdgeInferError
from edgeinfer.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # as Preferences.keep takes it
    title: str
    value: str
    about: str
    source: str = ""  # where the value comes from


class SettingsScreen(Picker):
    NAME = "settings"
    SEARCH = "Search settings and keys"
    BINDINGS: ClassVar[list[BindingType]] = bindings("settings")

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Setting] = {}

    def on_mount(self) -> None:
        super().on_mount()
        self.refresh_rows()

    def refresh_rows(self) -> None:
        words = self.query_text.casefold().split()
        self.settings = {setting.name: setting for setting in self._all()}
        options = [
            Option(row(setting.title, [sanitize(setting.value, single_line=True)], self.room), id=setting.name)
            for setting in self.settings.values()
            if all(word in f"{setting.name} {setting.title} {setting.about}".casefold() for word in words)
        ]
        self.fill(options or [Option(Text("No setting is called so.", "dim"), disabled=True)])

    def about(self, chosen: str | None) -> str | Text:
        setting = self.settings.get(chosen or "")
        return f"{setting.about}\n{setting.source}".rstrip() if setting else ""

    @work
    async def pick(self, chosen: str) -> None:  # type: ignore[override]
        setting = self.settings[chosen]
        kind, _, key = chosen.partition(".")
        value: Any
        if kind == "sampling":
            answer = await self._ask(setting, lambda text: sampling.read(key, text))
            value = sampling.read(key, answer) if answer is not None else None
            if answer is None:
                return
        elif kind == "shared":
            value = not self.chat_app.preferences.shared.get(key, False)
        elif kind == "key":
            value = await self.app.push_screen_wait(PressKey(setting.title))
        elif kind == "system":
            about = "For new conversations and this one; empty leaves it to the preset."
            value = await self.app.push_screen_wait(Write("System prompt", self.chat_app.preferences.system, about))
            if value is not None:
                self._use_system(value)
        else:
            value = await self._choose(kind)
        if value is not None or kind == "sampling":
            self._keep(chosen, value or None if kind == "system" else value)
        if kind == "shared":
            self._use_shared()

    def action_reset(self) -> None:
        if self.chosen in self.settings:
            self._keep(self.chosen, None)

    async def _ask(self, setting: Setting, check: Any) -> str | None:
        return await self.app.push_screen_wait(Ask(setting.title, setting.value, setting.about, check))

    async def _choose(self, kind: str) -> str | None:
        app = self.chat_app
        if kind == "theme":
            before = app.theme
            names = dict.fromkeys([*app.themes, *sorted(app.available_themes)], "")
            chosen = await app.push_screen_wait(
                Choose("Theme", names, before, lambda name: setattr(app, "theme", name))
            )
            app.theme = chosen or before
            return chosen
        abouts = {AUTO: "the one of the model's family"}
        abouts |= {preset.name: preset.about for preset in app.preferences.presets.values()}
        chosen = await app.push_screen_wait(Choose("Preset", abouts, app.preferences.preset))
        if chosen is not None and (preset := app.preferences.presets.get(chosen)) is not None and preset.system:
            self._use_system(preset.system, chosen)
        return chosen

    def _use_system(self, system: str, preset: str = "") -> None:
        """Of the conversation on the screen; new ones take it from the preferences."""
        session = self.chat_app.session
        if session.conversation is not None:
            session.store.use_system(session.conversation.id, system, preset)
            session.conversation = session.store.conversation(session.conversation.id)

    def _use_shared(self) -> None:
        """The model is loaded anew with them, unless it is at work."""
        app = self.chat_app
        if app.chat.turns.busy:
            self.say("It counts from the next /reload on.")
        elif app.engine.llm is not None:
            app.load(app.engine.wanted)

    def _keep(self, name: str, value: Any) -> None:
        try:
            self.chat_app.preferences.keep(name, value)
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
            return
        for problem in self.chat_app.apply_preferences():
            self.say(problem, trouble=True)
        self.refresh_rows()

    def _all(self) -> Iterator[Setting]:
        preferences, model = self.chat_app.preferences, self.chat_app.model_name
        preset, folder = preferences.preset_for(model), preferences.folder
        system = preferences.system_for(model)
        yield Setting("system", "System prompt", system or "none", "What the model is told before a conversation.")
        shown = f"{AUTO}: {preset.name}" if preferences.preset == AUTO and preset else preferences.preset
        yield Setting("preset", "Preset", shown, "Sampling and system prompt under one name.", f"{folder}/presets.toml")
        yield Setting("theme", "Theme", self.app.theme or DEFAULT, "Colours.", f"{folder}/themes/NAME.toml")
        for name, about in sampling.EXPLAINED.items():
            value = ANSWER_TOKENS if name == "max_tokens" else sampling.default(name)
            source = "as it is by default"
            if preset is not None and name in preset.params:
                value, source = preset.params[name], f"from the preset {preset.name}"
            if name in preferences.params:
                value, source = preferences.params[name], f"from {folder}/chat.toml"
            yield Setting(f"sampling.{name}", name.replace("_", " "), _shown(value), about, source)
        for name, (title, about) in SHARED.items():
            shown = "on" if preferences.shared.get(name) else "off"
            yield Setting(f"shared.{name}", title, shown, about, f"{folder}/config.toml, as {name}; for every command")
        for action in ACTIONS:
            if action.key:
                keys = preferences.keys.get(action.name, action.key)
                shown = " ".join(key_name(key) for key in keys.split(",") if key) or "no key"
                title = f"Key: {action.title.lower()} ({action.screen})"
                source = f"{folder}/keys.toml, as {action.name}"
                yield Setting(f"key.{action.name}", title, shown, action.help, source)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
