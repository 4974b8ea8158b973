"""One line that says what the machine is doing. What does not fit is left out from the right, never cut in two."""

from __future__ import annotations

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from edgeinfer.app.render.figures import GAP
from edgeinfer.app.render.lines import cells, cut
from edgeinfer.sanitize import sanitize

ROOMY = 60
"""Columns from which the hint has its place before the figures."""


class StatusLine(Widget):
    """``fields`` in order of importance; ``hint`` stands at the right end."""

    fields: reactive[tuple[str, ...]] = reactive(())
    hint: reactive[str] = reactive("")

    def render(self) -> Text:
        full = self.size.width
        width = full - cells(self.hint) - 2 if full >= ROOMY else full
        shown: list[str] = []
        for field in (sanitize(field, single_line=True) for field in self.fields if field):
            if cells(GAP.join([*shown, field])) > width:
                break
            shown.append(field)
        line = GAP.join(shown) or cut(sanitize("".join(self.fields[:1]), single_line=True), width)
        gap = full - cells(line) - cells(self.hint)
        return Text(line + (" " * gap + self.hint if gap >= 2 else ""), no_wrap=True, end="")
