"""What the prompt offers while one types: slash commands, paths behind an ``@``, and the size of what is attached."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass

from edgeinfer.app.actions import ACTIONS, Action, by_slash
from edgeinfer.app.attachments import completions, named_files
from edgeinfer.errors import BadRequest
from edgeinfer.units import human_bytes

OFFERED = 6
_COMMAND = re.compile(r"/[a-z][a-z-]*")


@dataclass(frozen=True, slots=True)
class Command:
    action: Action
    argument: str


def parsed(text: str) -> Command | None:
    """The command that a text is; None for a message. Raises BadRequest for a command that there is not."""
    word, _, rest = text.strip().partition(" ")
    if not _COMMAND.fullmatch(word) or "\n" in text.strip():
        return None
    action = by_slash(word)
    if action is not None:
        return Command(action, rest.strip())
    if rest:  # a sentence that begins with a path, not a command
        return None
    near = difflib.get_close_matches(word, [row.slash for row in ACTIONS if row.slash], n=1)
    raise BadRequest(f"no command {word}; {f'did you mean {near[0]}?' if near else '/help lists them'}", "command")


def hints(text: str, word: str) -> list[str]:
    """Lines to show above the prompt."""
    if _COMMAND.fullmatch(text) or text == "/":
        return [f"{row.slash} {row.takes}".ljust(18) + row.help for row in _matching(text)][:OFFERED]
    if word.startswith("@") and len(word) > 1:
        found = completions(word[1:])
        if not found and not named_files(word):
            return [f"{word} names no file here, and is sent as it stands"]
        shown = [os.path.basename(path.rstrip("/")) + ("/" if path.endswith("/") else "") for path in found[:OFFERED]]
        if found and found != [word[1:]]:
            return ["  ".join(shown) + (f"  … {len(found) - OFFERED} more" if len(found) > OFFERED else "")]
    if "@" in text and (files := named_files(text)):
        return [f"@ {file.path.name} · {human_bytes(file.size)}" for file in files[:OFFERED]]
    return []


def completed(text: str, word: str) -> str:
    """What Tab makes of the last word: as much as all that it may become have in common."""
    if text.startswith("/") and word == text:
        found = [f"{row.slash} " if row.takes else row.slash for row in _matching(text)]
    else:
        found = [f"@{path}" for path in completions(word.removeprefix("@"))]
    return os.path.commonprefix(found) or word  # noqa: RUF071  # characters are what one types


def _matching(text: str) -> list[Action]:
    return [row for row in ACTIONS if row.slash.startswith(text)]
