"""What stands where no message stands yet."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.app.render.entry import BLANK, Entry, Part, Rows
from edgeinfer.app.render.lines import Line, Run, Text, wrap

_WORDS = (
    ("Enter", "sends, Ctrl-J begins a new line"),
    ("@path", "attaches a text file, Tab completes it"),
    ("/", "begins a command, Ctrl-P finds one"),
    ("F1", "shows every key"),
)


class Welcome(Entry):
    """A few words for somebody who has just come."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = Rows(self._draw)

    @property
    def parts(self) -> Sequence[Part]:
        return (self._rows,)

    @property
    def copied(self) -> str:
        return ""

    def _draw(self, width: int) -> list[Line]:
        lines = wrap(Text("Nothing you write here leaves this machine.", "heading"), width)
        for key, words in _WORDS:
            lines += [Line((Run(f"{key:>7}", "inline-code"), Run(f"  {words}", "foot")))] if width > 50 else [
                Line((Run(key, "inline-code"),)), *wrap(Text(words, "foot"), width)
            ]  # fmt: skip
        return [lines[0], BLANK, *lines[1:]]
