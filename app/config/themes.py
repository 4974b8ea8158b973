"""Themes: three of our own, and one for every file in ``themes/``. A file may set the colours that Textual knows."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from edgeinfer.app.config.document import Document

COLOURS = (
    "primary", "secondary", "accent", "foreground", "background", "surface", "panel", "boost", "warning", "error",
    "success",
)  # fmt: skip
DEFAULT = "edgeinfer-dark"


def load_themes(folder: Path) -> tuple[dict[str, Theme], list[str]]:
    """Themes by name, and what was wrong with the files of the user."""
    ours = Path(str(files("edgeinfer.app").joinpath("themes")))
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for place, prefix in ((ours, "edgeinfer-"), (folder / "themes", "")):
        for file in sorted(place.glob("*.toml")):
            document = Document(file)
            theme = _theme(document, prefix + file.stem)
            if theme is not None:
                themes[theme.name] = theme
            problems += [f"themes/{problem}" for problem in document.problems]
    return themes, problems


def _theme(document: Document, name: str) -> Theme | None:
    """The theme; a colour that is none is left out. None without a primary one, which others are made from."""
    colours: dict[str, Any] = {}
    for key, value in document.values.items():
        if key == "dark" and isinstance(value, bool):
            colours[key] = value
        elif key not in COLOURS:
            document.complain(f"unknown key {key!r:.60}; known: dark, {', '.join(COLOURS)}", key)
        elif _is_colour(value):
            colours[key] = value
        else:
            document.complain(f'{key} = {value!r:.40}; expected a colour such as "#3b82f6"', key)
    if "primary" not in colours:
        if not document.problems:
            document.complain("primary is missing: the colour that others are made from", "primary")
        return None
    return Theme(name, **colours)


def _is_colour(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(Color.parse(value))
    except ColorParseError:
        return False
