"""Horizontal bars of block characters, eighths of a cell fine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgeinfer.cli.tables import cells
from edgeinfer.sanitize import sanitize

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bars(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], columns: int) -> str:
    """A title, and groups of bars on one scale: (group, [(name, length, what stands behind the bar)])."""
    rows = [(group if not index else "", *bar) for group, found in groups for index, bar in enumerate(found)]
    labels = max(cells(sanitize(row[0], single_line=True)) for row in rows)
    names = max(len(row[1]) for row in rows)
    room = max(8, columns - labels - names - 6 - max(len(row[3]) for row in rows))
    longest = max(row[2] for row in rows) or 1.0
    lines = [title]
    for label, name, value, text in rows:
        label = sanitize(label, single_line=True)
        padding = " " * (labels - cells(label))
        lines.append(f"  {label}{padding}  {name:{names}} {_bar(value / longest, room)} {text}")
    return "\n".join(lines)


def _bar(share: float, room: int) -> str:
    """At least a sliver, so that nothing measured looks like nothing."""
    eighths = max(1, round(8 * room * share))
    if not unicode_blocks():
        return "#" * max(1, eighths // 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def unicode_blocks() -> bool:
    """Whether stdout's encoding has the characters that bars are made of."""
    try:
        "█▏".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
