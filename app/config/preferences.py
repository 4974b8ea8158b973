"""What the user set for the app: theme, preset, system prompt, sampling, keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from edgeinfer.app.config import sampling
from edgeinfer.app.config.document import Document, keep
from edgeinfer.errors import BadRequest

AUTO = "auto"
"""The preset of the model's family, where it has one."""
SHARED = {
    "keep_kv": (
        "Keep contexts on disk",
        "A chat goes on another day without being read again; who can read your files can work out what was said.",
    ),
    "keep_outputs": (
        "Keep answers for drafts",
        "Replies that repeat earlier ones come faster; who can read your files can read the answers.",
    ),
}
"""Settings of every command that are on or off, with a title and what they cost; off where nothing is set."""
_TEXTS = ("theme", "preset", "system")
_PRESET_KEYS = ("families", "about", "system", *sampling.EXPLAINED)


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    about: str = ""
    system: str = ""
    families: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Preferences:
    """``problems`` are what was wrong with the files, a line each; what was right in them counts."""

    folder: Path
    theme: str = ""
    preset: str = AUTO
    system: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    shared: dict[str, bool] = field(default_factory=dict)
    presets: dict[str, Preset] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def preset_for(self, model: str) -> Preset | None:
        """The chosen preset, or with ``auto`` that of the model's family: the longest name that fits."""
        if self.preset != AUTO:
            return self.presets.get(self.preset)
        name = _plain(model)
        found = [
            (len(_plain(family)), preset)
            for preset in self.presets.values()
            for family in preset.families
            if name.startswith(_plain(family))
        ]
        return max(found, key=lambda row: row[0])[1] if found else None

    def sampling_for(self, model: str) -> dict[str, Any]:
        """The options of ``LLM.stream``: the preset's, and what was set by hand on top."""
        preset = self.preset_for(model)
        return {**(preset.params if preset else {}), **self.params}

    def system_for(self, model: str) -> str:
        """The system prompt of new conversations."""
        preset = self.preset_for(model)
        return self.system or (preset.system if preset else "")

    def keep(self, name: str, value: Any) -> None:
        """Writes a setting to its file, None takes it out: ``theme``, ``sampling.top_k``, ``key.retry``.

        ``shared.keep_kv`` goes to the file of all commands. Raises NotSaved.
        """
        kind, _, key = name.partition(".")
        if kind == "key":
            keep(self.folder / "keys.toml", key, value)
        elif kind == "sampling":
            keep(self.folder / "chat.toml", key, value, "sampling")
        elif kind == "shared":
            keep(self.folder / "config.toml", key, value)
        else:
            keep(self.folder / "chat.toml", name, value)


def load_preferences(folder: Path, actions: Iterable[str]) -> Preferences:
    """Reads chat.toml, presets.toml and keys.toml of a folder. ``actions`` are the names that keys are set for.

    Of config.toml it takes what SHARED names; loading a model says what is wrong with that file.
    """
    found = Preferences(folder)
    own = Document(folder / "presets.toml")
    for document in (Document(Path(str(files("edgeinfer.app.config").joinpath("presets.toml")))), own):
        for name, row in document.values.items():
            if (preset := _preset(document, name, row)) is not None:
                found.presets[name] = preset
    chat, keys = Document(folder / "chat.toml"), Document(folder / "keys.toml")
    _read_chat(chat, found)
    found.keys = _keys(keys, list(actions))
    found.shared = {
        key: value is True for key, value in Document(folder / "config.toml").values.items() if key in SHARED
    }
    found.problems = chat.problems + keys.problems + own.problems
    return found


def _read_chat(document: Document, found: Preferences) -> None:
    for key, value in document.values.items():
        if key == "sampling":
            found.params = _params(document, document.table("sampling"), "sampling")
        elif key not in _TEXTS:
            document.complain(_unknown(key, [*_TEXTS, "sampling"]), key)
        elif not isinstance(value, str):
            document.complain(f"{key} = {value!r:.40}; expected a text between quotes", key)
        elif key == "preset" and value not in (AUTO, *found.presets):
            document.complain(f"no preset {value!r:.40}; {_near(value, [AUTO, *found.presets])}", key)
        else:
            setattr(found, key, value)


def _keys(document: Document, known: list[str]) -> dict[str, str]:
    keys = {}
    for key, value in document.values.items():
        if key not in known:
            document.complain(_unknown(key, known), key)
        elif not isinstance(value, str) or not re.fullmatch(r"[^\s,]+(,[^\s,]+)*", value):
            document.complain(f'{key} = {value!r:.40}; expected a key such as "ctrl+r", or several with commas', key)
        else:
            keys[key] = value
    return keys


def _preset(document: Document, name: str, row: Any) -> Preset | None:
    if not isinstance(row, dict):
        document.complain(f"{name}: expected a table [{name}]", name)
        return None
    families = row.get("families", [])
    for key in row:
        if key not in _PRESET_KEYS:
            document.complain(_unknown(key, _PRESET_KEYS), key, name)
    for key in ("about", "system"):
        if not isinstance(row.get(key, ""), str):
            document.complain(f"{key}: expected a text between quotes", key, name)
            return None
    if not isinstance(families, list) or not all(isinstance(family, str) and _plain(family) for family in families):
        document.complain("families: expected a list of names", "families", name)
        families = []
    params = _params(document, {key: row[key] for key in row if key in sampling.EXPLAINED}, name)
    return Preset(name, row.get("about", ""), row.get("system", ""), tuple(families), params)


def _params(document: Document, row: Mapping[str, Any], table: str) -> dict[str, Any]:
    params = {}
    for key, value in row.items():
        try:
            if key not in sampling.EXPLAINED:
                raise BadRequest(_unknown(key, sampling.EXPLAINED))
            params[key] = sampling.checked(key, value)
        except BadRequest as error:
            document.complain(str(error), key, table)
    return params


def _unknown(key: str, known: Iterable[str]) -> str:
    return f"unknown key {key!r:.60}; {_near(key, known)}"


def _near(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known[:12])}{' …' if len(known) > 12 else ''}"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.rpartition("/")[2].casefold())
