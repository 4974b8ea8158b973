"""Rows in aligned columns, and labelled facts, that fit the terminal."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from textwrap import wrap
from typing import TextIO

from edgeinfer.sanitize import sanitize

_GAP = "  "


def width(stream: TextIO | None = None) -> int:
    """Columns to fill of ``stream`` (stdout): the terminal's, and no limit where output is read by a program."""
    return shutil.get_terminal_size((80, 24)).columns if (stream or sys.stdout).isatty() else sys.maxsize


def table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: int, right: frozenset[int] = frozenset()) -> str:
    """Lines of cells, sanitized and aligned; the widest of the columns is cut with ``…`` until all fit ``columns``."""
    lines = [[sanitize(cell, single_line=True) for cell in row] for row in (head, *rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(head))]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > columns and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return "\n".join(
        _GAP.join(_padded(cell, widths[i], i in right) for i, cell in enumerate(line)).rstrip() for line in lines
    )


def facts(rows: Sequence[tuple[str, str]], columns: int, indent: str = "") -> str:
    """Lines of a label and what it says, sanitized and aligned; what is too long goes on below its beginning."""
    labels = max(len(label) for label, _ in rows)
    room = max(20, columns - len(indent) - labels - len(_GAP))
    below = "\n" + " " * (len(indent) + labels + len(_GAP))
    return "\n".join(
        f"{indent}{label:{labels}}{_GAP}{below.join(_wrapped(sanitize(text, single_line=True), room))}"
        for label, text in rows
    )


def _wrapped(text: str, room: int) -> list[str]:
    return wrap(text, room, break_long_words=False, break_on_hyphens=False)


def cells(text: str) -> int:
    """Terminal cells that text takes: two for a wide character, none for a combining one."""
    return sum(_cell(character) for character in text)


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _padded(text: str, size: int, right: bool) -> str:
    if cells(text) > size:
        while text and cells(text) > size - 1:
            text = text[:-1]
        text += "…"
    padding = " " * (size - cells(text))
    return padding + text if right else text + padding
