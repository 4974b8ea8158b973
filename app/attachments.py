"""Files that a message names with ``@path``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.conversations import Attachment
from edgeinfer.errors import BadInput

MOST_BYTES = 8 << 20
_NAMED = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|(\S+))""")


@dataclass(frozen=True, slots=True)
class Named:
    """A file that a text names, and its size in bytes."""

    path: Path
    size: int


def named_files(text: str) -> list[Named]:
    """The files that stand in a text as ``@path`` or ``@"path with spaces"``; a word that names none is only a word."""
    found: dict[Path, Named] = {}
    for match in _NAMED.finditer(text):
        path = _file(match[1] or match[2].rstrip(".,;:!?)"))
        if path is not None:
            found.setdefault(path, Named(path, path.stat().st_size))
    return list(found.values())


def _file(word: str) -> Path | None:
    try:
        path = Path(word).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a NUL
        return None


def attach(file: Named, count: Callable[[str], int]) -> Attachment:
    """Reads a file as text; ``count`` gives the tokens of it. Raises BadInput for what is no text, or too much."""
    shown = str(file.path)
    if file.size > MOST_BYTES:
        raise BadInput(f"@{shown}: {file.size:,} bytes; at most {MOST_BYTES:,} can be attached")
    try:
        text = file.path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"@{shown}: byte {error.start} is not UTF-8; only text can be attached") from None
    except OSError as error:
        raise BadInput(f"@{shown}: cannot be read: {error.strerror}") from None
    return Attachment(file.path.name, text, count(text))


def completions(word: str, limit: int = 200) -> list[str]:
    """The paths that begin with ``word``; folders end with a slash. Hidden files only where a dot was typed."""
    folder, _, start = word.rpartition("/")
    try:
        base = Path(f"{folder}/" if folder or word.startswith("/") else ".").expanduser()
        entries = sorted(os.scandir(base), key=lambda entry: entry.name.lower())
    except (OSError, RuntimeError, ValueError):
        return []
    found = [
        f"{f'{folder}/' if folder or word.startswith('/') else ''}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(start) and (start or not entry.name.startswith("."))
    ]
    return found[:limit]
