"""A small TOML file of the user's: read so that every problem names its line, and changed without touching the rest."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeinfer.errors import NotSaved

_MOST_BYTES = 1 << 20
_AT = re.compile(r"\s*\(at line (\d+), column \d+\)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Document:
    """The values of a file; empty where there is none. ``problems`` are lines to show."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        self.problems: list[str] = []
        self._text = ""
        try:
            if not file.exists():
                return
            if not file.is_file() or file.stat().st_size > _MOST_BYTES:
                self.problems.append(f"{file.name}: no small text file; ignored")
                return
            self._text = file.read_text(encoding="utf-8")
            self.values = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            at = _AT.search(str(error))
            line = at[1] if at else str(self._text.count("\n") + 1)
            self.problems.append(f"{file.name}, line {line}: {_AT.sub('', str(error))}; the file is ignored")
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{file.name}: {error}; the file is ignored")

    def table(self, name: str) -> Mapping[str, Any]:
        """A table of the file; empty where there is none. Something else in its place is a problem."""
        found = self.values.get(name, {})
        if not isinstance(found, dict):
            self.complain(f"expected a table [{name}]", name)
            return {}
        return found

    def complain(self, what: str, key: str = "", table: str = "") -> None:
        """Adds a problem with the line of a key, or of a table's head."""
        self.problems.append(f"{self.file.name}, line {self.line(key, table)}: {what}")

    def line(self, key: str, table: str = "") -> int:
        inside = not table
        for number, line in enumerate(self._text.splitlines(), 1):
            head = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
            if head:
                name = head[1].replace('"', "").replace("'", "")
                inside = name == table or not table
                if name == (f"{table}.{key}" if table else key) or (inside and name == table and not key):
                    return number
            elif inside and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""", line):
                return number
        return 1


def keep(file: Path, key: str, value: Any, table: str = "") -> None:
    """Writes one value into a file, or takes it out (None); all other lines stay as they are. Raises NotSaved."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        start, end = _span(lines, table)
        place = next(
            (at for at in range(start, end) if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", lines[at])), None
        )
        if place is not None:
            last = _last_line(lines, place, end)
            lines[place : last + 1] = [] if value is None else [_line(key, value)]
        elif value is not None:
            if table and start == 0:
                lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
                end = len(lines)
            while end > start and end > 0 and not lines[end - 1].strip():
                end -= 1
            lines.insert(end, _line(key, value))
        text = "\n".join(lines) + "\n" if lines else ""
        tomllib.loads(text)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.tmp")
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, file)
    except tomllib.TOMLDecodeError as error:
        raise NotSaved(f"{file.name} has a mistake that must be mended by hand first: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotSaved(f"{file}: {error}") from None


def _span(lines: list[str], table: str) -> tuple[int, int]:
    """The lines of a table, without its head; (0, …) where a table is missing, or for what stands before all tables."""
    heads = [(at, match[1]) for at, line in enumerate(lines) if (match := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line))]
    if not table:
        return 0, heads[0][0] if heads else len(lines)
    for place, (at, name) in enumerate(heads):
        if name == table:
            return at + 1, heads[place + 1][0] if place + 1 < len(heads) else len(lines)
    return 0, 0


def _last_line(lines: list[str], place: int, end: int) -> int:
    """The last line of a value that may go on over several."""
    for last in range(place, end):
        try:
            tomllib.loads("\n".join(lines[place : last + 1]))
        except tomllib.TOMLDecodeError:
            continue
        return last
    return place


def _line(key: str, value: Any) -> str:
    name = key if _BARE.fullmatch(key) else json.dumps(key)
    return f"{name} = {_value(value)}"


def _value(value: Any) -> str:
    """JSON's strings and numbers are TOML's, but for the escape of DEL and of halves of characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
