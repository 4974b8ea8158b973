"""One line that says what the machine is doing. What does not fit is left out from the right, never cut in two."""

from __future__ import annotations

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from edgeinfer.app.render.lines import cells, cut
from edgeinfer.sanitize import sanitize

GAP = " · "


class StatusLine(Widget):
    """``fields`` in order of importance; ``hint`` stands at the right end as long as there is room."""

    fields: reactive[tuple[str, ...]] = reactive(())
    hint: reactive[str] = reactive("")

    def render(self) -> Text:
        width = self.size.width
        shown: list[str] = []
        for field in (sanitize(field, single_line=True) for field in self.fields if field):
            if cells(GAP.join([*shown, field])) > width:
                break
            shown.append(field)
        line = GAP.join(shown) or cut(sanitize("".join(self.fields[:1]), single_line=True), width)
        gap = width - cells(line) - cells(self.hint)
        return Text(line + (" " * gap + self.hint if gap >= 2 else ""), no_wrap=True, end="")
