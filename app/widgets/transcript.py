"""The messages of a conversation as one long page of which only what is looked at is laid out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from edgeinfer.app.render.entry import Entry, Said, Told
from edgeinfer.app.render.lines import Line, cells

MARGIN = 2
"""Columns left of a message, the first of which marks the chosen one."""
WIDEST = 110
"""Columns of text; longer lines are hard to read."""
KEPT = 64
"""Entries around the view whose lines are kept."""
STRIPS = 400
"""Rows that are kept as they were drawn."""

STYLES = (
    "said", "said-bar", "queued", "queued-bar", "dim", "foot", "trouble", "versions", "thought", "thought-label",
    "chosen", "strong", "em", "strike", "link", "url", "inline-code", "heading", "heading-1", "heading-2",
    "heading-3", "heading-4", "heading-5", "heading-6", "quote", "marker", "rule", "code", "code-label", "code-comment",
    "code-keyword", "code-string", "code-number", "code-name", "code-builtin", "code-deleted",
)  # fmt: skip
"""Names that lines use, each a component class ``transcript--<name>`` of the style sheet."""


class Transcript(ScrollView, can_focus=True):
    """Follows its end until the reader scrolls up, and again when the reader comes back to the end."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in STYLES}
    ALLOW_SELECT = True
    FOCUS_ON_CLICK = False

    @dataclass
    class Followed(Message):
        """The reader left the end, or came back to it."""

        following: bool

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.entries: list[Entry] = []
        self.chosen: int | None = None
        self.following = True
        self._tops: list[int] = [0]
        self._styles: dict[str, Style] = {}
        self._strips: dict[int, tuple[Line, bool, Strip]] = {}  # by row
        self._moving = False  # it is us who scroll
        self._laid: set[Entry] = set()

    # What it shows

    def show(self, entries: Iterable[Entry]) -> None:
        """Puts other entries in place of all, and goes to their end."""
        self.entries = list(entries)
        self.chosen = None
        self._laid.clear()
        self._follow(True)
        self.lay_out()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.lay_out()

    def take_out(self, entry: Entry) -> None:
        if entry in self.entries:
            self.entries.remove(entry)
            self._laid.discard(entry)
            self.lay_out()

    def choose(self, index: int | None) -> None:
        """Marks an entry and brings it into view."""
        self.chosen = index
        if index is not None:
            top, bottom = self._tops[index], self._tops[index + 1] - 1
            height = self.size.height
            if top < self.scroll_y or bottom - top >= height:
                self._go(top)
            elif bottom > self.scroll_y + height:
                self._go(bottom - height)
            self._follow(self.scroll_y >= self.max_scroll_y)
            self.lay_out()
        self.refresh()

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self._follow(True)
        self.lay_out()

    def lay_out(self) -> None:
        """Takes changed heights in. What the reader looks at stays where it is, or at the end if that is followed."""
        if not self.size:
            return
        width, height, shift = self.text_width, self.size.height, 0
        self._sum(width)
        if self.following:
            self._settle_end(width, height)
        else:
            top = round(self.scroll_y)
            shift = self._settle(width, top - height, top, top + 2 * height)
            self._sum(width)
        size = Size(self.size.width, max(0, self._tops[-1] - 1))  # no blank row at the end
        if size != self.virtual_size:
            self.virtual_size = size
        if self.following:
            self._go(self.max_scroll_y)
        elif shift:
            self._go(self.scroll_y + shift)
        self._forget()
        self.refresh()

    @property
    def text_width(self) -> int:
        return max(8, min(WIDEST, self.scrollable_content_region.width - MARGIN - 1))

    # Scrolling

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._moving or round(old_value) == round(new_value):
            return
        self._follow(new_value >= self.max_scroll_y)
        self.lay_out()

    def on_resize(self, event: events.Resize) -> None:
        self._strips.clear()
        self.lay_out()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()

    def _follow(self, following: bool) -> None:
        if following != self.following:
            self.following = following
            self.post_message(self.Followed(following))

    def _go(self, y: float) -> None:
        self._moving = True
        try:
            self.scroll_to(y=max(0, y), animate=False, force=True, immediate=True)
        finally:
            self._moving = False

    # Heights

    def _sum(self, width: int) -> None:
        total, self._tops = 0, [0]
        for entry in self.entries:
            total += entry.height(width)
            self._tops.append(total)

    def _settle_end(self, width: int, height: int) -> None:
        """Lays out the last rows. What is above them comes among them where they are fewer than was thought."""
        total = -1
        while total != self._tops[-1]:
            total = self._tops[-1]
            self._settle(width, total - 2 * height, total - height, total)
            self._sum(width)

    def _settle(self, width: int, first: int, top: int, last: int) -> int:
        """Lays out what lies from row ``first`` to ``last``; how much taller what is above ``top`` became."""
        shift, index = 0, max(0, bisect_right(self._tops, max(0, first)) - 1)
        start = self._tops[index]
        while index < len(self.entries) and start <= last:
            entry = self.entries[index]
            shift += entry.settle(width, max(0, top + shift - start), last - start)
            self._laid.add(entry)
            start += entry.height(width)
            index += 1
        return shift

    def _forget(self) -> None:
        """Gives up the lines of entries that are far from the view."""
        if len(self._laid) <= 2 * KEPT:
            return
        middle = bisect_right(self._tops, self.scroll_y)
        near = set(self.entries[max(0, middle - KEPT // 2) : middle + KEPT // 2])
        for entry in self._laid - near:
            entry.forget()
        self._laid &= near

    # Drawing

    def render_line(self, y: int) -> Strip:
        row = round(self.scroll_y) + y
        index = bisect_right(self._tops, row) - 1
        if index >= len(self._tops) - 1:
            return Strip.blank(self.size.width, self._style(""))
        line = self.entries[index].line(self.text_width, row - self._tops[index])
        chosen = index == self.chosen and row < self._tops[index + 1] - 1
        if self.text_selection is not None:
            return self._strip(line, row, chosen)
        known = self._strips.get(row)
        if known is None or known[0] is not line or known[1] != chosen:
            if len(self._strips) > STRIPS:
                self._strips.clear()
            known = self._strips[row] = line, chosen, self._strip(line, row, chosen)
        return known[2]

    def _strip(self, line: Line, row: int, chosen: bool) -> Strip:
        width, base = self.size.width, self._style("")
        mark = Segment("▐ ", self._style("chosen")) if chosen else Segment("  ", base)
        segments = [mark, *self._segments(line, row)]
        room = width - MARGIN - (self.text_width if line.fill else cells(line.text))
        strip = Strip([*segments, Segment(" " * room, base)], width) if room >= 0 else Strip(segments).crop(0, width)
        return strip.apply_offsets(0, row)

    def _segments(self, line: Line, row: int) -> Iterator[Segment]:
        start, end = self._selected(row)
        position = MARGIN
        for text, style in line.runs:
            drawn = self._style(f"{line.fill} {style}" if line.fill else style)
            for piece, selected in _split(text, start - position, end - position):
                yield Segment(piece, drawn + self._selection_style if selected else drawn)
            position += len(text)
        if line.fill and (rest := self.text_width - cells(line.text)) > 0:
            yield Segment(" " * rest, self._style(line.fill))

    @property
    def _selection_style(self) -> Style:
        return self.screen.get_component_rich_style("screen--selection")

    def _style(self, names: str) -> Style:
        """The style of names with spaces between, each over the one before, all over the widget's own."""
        found = self._styles.get(names)
        if found is None:
            parts = (self.get_component_rich_style(f"transcript--{name}", partial=True) for name in names.split())
            found = self._styles[names] = sum(parts, self.rich_style)
        return found

    # Selecting with the mouse

    def _selected(self, row: int) -> tuple[int, int]:
        span = self.text_selection.get_span(row) if self.text_selection else None
        if span is None:
            return 0, 0
        return span[0], span[1] if span[1] >= 0 else 1 << 30

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text under the selection, without what is no part of it, and with rows joined that wrapping parted."""
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else self._tops[-1] - 1
        width, pieces = self.text_width, list[str]()
        for row in range(max(0, first), min(last, self._tops[-1] - 1) + 1):
            index = bisect_right(self._tops, row) - 1
            line = self.entries[index].line(width, row - self._tops[index])
            start, end = selection.get_span(row) or (0, 0)
            end = end - MARGIN if end >= 0 else len(line.text)
            pieces.append(line.text[max(line.lead, start - MARGIN) : max(0, end)] + ("" if line.joins else "\n"))
        return "".join(pieces).removesuffix("\n"), "\n"

    # Clicks

    def on_click(self, event: events.Click) -> None:
        """A click on a fold opens it."""
        row = round(self.scroll_y) + event.y
        index = bisect_right(self._tops, row) - 1
        if index >= len(self._tops) - 1:
            return
        entry = self.entries[index]
        label = isinstance(entry, Told) and row == self._tops[index]
        if isinstance(entry, (Said, Told)) and entry.folds and (label or isinstance(entry, Said)):
            entry.toggle()
            self.lay_out()


def _split(text: str, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """The pieces of a text before, in and after a selection, and whether each is selected."""
    for piece, chosen in ((text[: max(0, start)], False), (text[max(0, start) : max(0, end)], True)):
        if piece:
            yield piece, chosen
    if rest := text[max(0, start, end) :]:
        yield rest, False
