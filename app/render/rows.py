"""Rows of lists: a name on the left, facts on the right, and what there is no room for left out from the right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from edgeinfer.app.render.lines import cut
from edgeinfer.sanitize import sanitize

_LEAST = 12  # cells that a name has at least, before a fact is left out
_GAP = "  "


def row(name: str, facts: Sequence[str], width: int, mark: str = "  ", style: str = "") -> Text:
    """One line of ``width`` cells. The first facts are the most important; the name takes what they leave."""
    shown = [fact for fact in facts if fact]
    while shown and width - cell_len(mark) - _taken(shown) < max(_LEAST, min(cell_len(name), width // 2)):
        shown.pop()
    room = max(1, width - cell_len(mark) - _taken(shown))
    name = cut(sanitize(name, single_line=True), room)
    text = Text(mark, no_wrap=True, end="")
    text.append(name, style)
    text.append(" " * (room - cell_len(name)))
    for fact in shown:
        text.append(_GAP)
        text.append(fact, "dim")
    return text


def _taken(facts: Sequence[str]) -> int:
    return sum(cell_len(_GAP + fact) for fact in facts)


def columns(rows: Sequence[Sequence[str]], names: Sequence[str], width: int) -> list[list[str]]:
    """The same facts of all rows as columns, of which the last ones go where there is no room for them beside names.

    ``names`` are what stands before the facts, in rows of ``width`` cells.
    """
    padded = []
    for column in zip(*rows, strict=True):
        widest = max(map(cell_len, column))
        padded.append([" " * (widest - cell_len(fact)) + fact for fact in column])
    needed = max(_LEAST, min(max(map(cell_len, names), default=0), width // 2))
    while padded and width - _taken([column[0] for column in padded]) < needed:
        padded.pop()
    return [list(line) for line in zip(*padded, strict=True)] if padded else [[] for _ in rows]


def aligned(words: Sequence[str], gap: int = 2) -> list[str]:
    """The same word of all rows, padded on the right so that what follows it stands in a column."""
    width = max(map(cell_len, words), default=0) + gap
    return [word + " " * (width - cell_len(word)) for word in words]
