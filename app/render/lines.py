"""Lines of styled runs, and breaking text into them by terminal cells."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from rich.cells import cell_len, split_graphemes

TAB = "    "


class Run(NamedTuple):
    """Text in one style; ``style`` holds names with spaces between."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Runs in a row, and the style that fills the rest of it."""

    runs: tuple[Run, ...] = ()
    fill: str = ""
    lead: int = 0  # characters at the start that are not of the text: bars, padding, indents
    joins: bool = False  # the text goes on in the next row without a line end

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)

    def behind(self, prefix: Run, of_text: bool = False) -> Line:
        """The line with a run before it, which is no part of the text unless ``of_text``."""
        return Line((prefix, *self.runs), self.fill, 0 if of_text else self.lead + len(prefix.text), self.joins)


Span: TypeAlias = tuple[int, int, str]
"""Start, end and style of a part of a text."""


class Text:
    """Plain text and the styles of its parts, put together piece by piece."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self.spans: list[Span] = []
        self._parts: list[str] = []
        self._length = 0
        if text:
            self.add(text, style)

    @property
    def plain(self) -> str:
        return "".join(self._parts)

    def add(self, text: str, style: str = "") -> None:
        text = text.replace("\t", TAB)
        self._parts.append(text)
        end = self._length + len(text)
        if style and text:
            self.spans.append((self._length, end, style))
        self._length = end


def wrap(text: Text, width: int, words: bool = True) -> list[Line]:
    """Lines of at most ``width`` cells: broken between words, or anywhere; at least one line."""
    plain, width = text.plain, max(1, width)
    lines: list[Line] = []
    start = 0
    for part in plain.split("\n"):
        rows = list(_breaks(part, width, words))
        for begin, end in rows:
            runs = tuple(_runs(plain, text.spans, start + begin, start + end))
            lines.append(Line(runs, joins=end < rows[-1][1]))
        start += len(part) + 1
    return lines


def _breaks(line: str, width: int, words: bool) -> Iterator[tuple[int, int]]:
    """Start and end of each row of one line."""
    if cells(line) <= width:
        yield 0, len(line)
        return
    start = position = used = 0
    for word in _WORDS.findall(line) if words else [line]:
        size = cells(word.rstrip()) if words else cells(word)
        if used + size > width:
            if used and size <= width:
                yield start, position
                start, used = position, 0
            else:
                for length, grapheme in _graphemes(word):
                    if used + grapheme > width and used:
                        yield start, position
                        start, used = position, 0
                    position += length
                    used += grapheme
                continue
        position += len(word)
        used += cells(word) if words else size
    yield start, position


_WORDS = re.compile(r"\s*\S+\s*|\s+")


def _graphemes(text: str) -> Iterator[tuple[int, int]]:
    """Characters and cells of each grapheme; what has no cells of its own stays with what is before it."""
    if text.isascii():
        yield from ((1, 1) for _ in text)
        return
    spans, _ = split_graphemes(text)
    yield from ((end - start, size) for start, end, size in spans)


def cells(text: str) -> int:
    """Terminal cells that a text without line ends takes."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """Text of at most ``width`` cells, with ``…`` where it was cut."""
    if cells(text) <= width:
        return text
    used = position = 0
    for length, size in _graphemes(text):
        if used + size > width - 1:
            break
        position, used = position + length, used + size
    return text[:position] + "…" if width > 0 else ""


def filled(fields: Sequence[str], gap: str, width: int) -> list[list[str]]:
    """Rows of as many fields as fit each, with gaps between; none is broken."""
    rows: list[list[str]] = []
    for field in fields:
        if rows and cells(gap.join([*rows[-1], field])) <= width:
            rows[-1].append(field)
        else:
            rows.append([field])
    return rows


def _runs(plain: str, spans: Sequence[Span], start: int, end: int) -> Iterator[Run]:
    """The runs of a part of a text; spans are in order and do not overlap."""
    position = start
    first = bisect_right(spans, start, key=lambda span: span[1])
    for begin, finish, style in islice(spans, first, None):
        if begin >= end:
            break
        if begin > position:
            yield Run(plain[position:begin])
            position = begin
        stop = min(finish, end)
        yield Run(plain[position:stop], style)
        position = stop
    if position < end:
        yield Run(plain[position:end])
