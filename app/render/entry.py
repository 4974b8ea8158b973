"""Messages as parts that a transcript stacks. A part knows its height before it is laid out, at least roughly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from edgeinfer.app.render.figures import GAP
from edgeinfer.app.render.lines import Line, Run, Text, cells, filled, wrap
from edgeinfer.app.render.markdown import Document
from edgeinfer.sanitize import sanitize

LONG_LINES = 40
"""Lines from which a message of the user is folded."""
SHOWN_LINES = 12
LONG_TEXT = 6000
BLANK = Line()


class Part(Protocol):
    def lines(self, width: int) -> list[Line]: ...
    def height(self, width: int) -> int: ...
    def forget(self) -> None: ...


class Rows:
    """A part that a function draws."""

    def __init__(self, draw: Callable[[int], list[Line]], guess: Callable[[int], int] = lambda _: 1) -> None:
        self._draw, self._guess = draw, guess
        self._lines: list[Line] = []
        self._width = self._height = 0

    def lines(self, width: int) -> list[Line]:
        if self._width != width or not self._lines:
            self._lines = self._draw(width)
            self._width, self._height = width, len(self._lines)
        return self._lines

    def height(self, width: int) -> int:
        return self._height if self._width == width else self._guess(width)

    def forget(self) -> None:
        self._lines = []


class Entry:
    """Something the transcript shows: parts with a blank row after each."""

    def __init__(self, message: int | None = None) -> None:
        self.message = message
        self._tops: list[int] = []
        self._width = 0

    @property
    def parts(self) -> Sequence[Part]:
        raise NotImplementedError

    @property
    def copied(self) -> str:
        """What copying it gives."""
        raise NotImplementedError

    def code(self) -> list[str]:
        """Its blocks of code, from the first to the last."""
        return []

    def changed(self) -> None:
        """Heights have to be summed anew."""
        self._tops = []

    def height(self, width: int) -> int:
        return self._sums(width)[-1]

    def line(self, width: int, row: int) -> Line:
        """One row; that of a part which is laid out for it if it was not."""
        tops = self._sums(width)
        index = bisect_right(tops, row) - 1
        if index >= len(self.parts):
            return BLANK
        part, inside = self.parts[index], row - tops[index]
        expected = part.height(width)
        lines = part.lines(width)
        if len(lines) != expected:  # drawn before it was laid out: the sums are of a guess
            self.changed()
        return lines[inside] if inside < len(lines) else BLANK

    def open(self) -> None:
        """It is about to be looked at."""

    def settle(self, width: int, first: int, last: int) -> int:
        """Lays the parts out that lie in rows ``first`` to ``last``; how much taller those above ``first`` became."""
        before = self.height(width)
        self.open()
        tops = self._sums(width)
        above = tops[-1] - before if before <= first else 0
        first += above
        for index in range(max(0, bisect_right(tops, first) - 1), len(self.parts)):
            if tops[index] > last:
                break
            part = self.parts[index]
            before = part.height(width)
            part.lines(width)
            grown = part.height(width) - before
            if grown:
                self.changed()
                above += grown if tops[index] + before < first else 0
        return above

    def forget(self) -> None:
        for part in self.parts:
            part.forget()

    def _sums(self, width: int) -> list[int]:
        if not self._tops or self._width != width:
            total = 0
            self._tops = [0]
            for part in self.parts:
                total += part.height(width) + 1
                self._tops.append(total)
            self._width = width
        return self._tops


class Said(Entry):
    """A message of the user, as it was written: never taken for Markdown."""

    def __init__(self, text: str, message: int | None = None, notes: Sequence[str] = (), queued: bool = False) -> None:
        super().__init__(message)
        self.text = text
        self.unfolded = False
        self._notes = tuple(notes)
        self._style = "queued" if queued else "said"
        self._rows = Rows(self._draw, lambda width: min(LONG_LINES, 1 + len(text) // width) + len(self._notes))

    @property
    def parts(self) -> Sequence[Part]:
        return (self._rows,)

    @property
    def copied(self) -> str:
        return self.text

    @property
    def folds(self) -> bool:
        return len(self.text) > LONG_TEXT or self.text.count("\n") >= LONG_LINES

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self._rows.forget()
        self.changed()

    def _draw(self, width: int) -> list[Line]:
        text, left = self.text, 0
        if self.folds and not self.unfolded:
            lines = text.split("\n")
            text = "\n".join(lines[:SHOWN_LINES])[: LONG_TEXT // 4]
            left = len(self.text) - len(text)
        lines_shown = wrap(Text(sanitize(text)), width - 4)
        bar = Run("▌ ", f"{self._style} {self._style}-bar")
        rows = [Line(line.runs, self._style, line.lead, line.joins).behind(bar) for line in lines_shown]
        if left:
            rows.append(_note(f"… {left:,} more characters, all sent (F9 shows them)", self._style, bar))
        return rows + [_note(note, self._style, bar) for note in self._notes]


def _note(text: str, style: str, bar: Run) -> Line:
    text = sanitize(text, single_line=True)
    return Line((Run(text, f"{style} dim"),), style, lead=len(text)).behind(bar)


class Told(Entry):
    """A reply: what was thought, folded; the answer as Markdown; and below it what it took."""

    def __init__(self, text: str = "", reasoning: str = "", message: int | None = None) -> None:
        super().__init__(message)
        self.text = text
        self.reasoning = reasoning
        self.unfolded = False
        self.label = "reasoning"  # how long it took, where that is known
        self.foot = ""
        self.versions = ""  # "2/3" where there are others
        self.trouble = False
        self._shown = 0  # characters of the text that are in the document
        self._document: Document | None = None
        self._guess = Rows(lambda width: [BLANK], lambda width: 1 + len(self.text) // width + self.text.count("\n"))
        self._thought = Rows(self._draw_reasoning)
        self._end = Rows(self._draw_end)

    @property
    def document(self) -> Document:
        """The answer as far as it is known now; parsed when it is first looked at."""
        if self._document is None:
            self._document = Document()
        if self._shown < len(self.text):
            self._document.append(sanitize(self.text[self._shown :]))
            self._shown = len(self.text)
        return self._document

    @property
    def parts(self) -> Sequence[Part]:
        answer: Sequence[Part] = [self._guess] if self._document is None else self._document.blocks
        thought = [self._thought] if self.reasoning else []
        return [*thought, *answer, *([self._end] if self.foot or self.versions else [])]

    @property
    def copied(self) -> str:
        return self.text

    def code(self) -> list[str]:
        return [code for block in self.document.blocks for code in block.code()]

    @property
    def folds(self) -> bool:
        return bool(self.reasoning)

    def open(self) -> None:
        if self._document is None:
            assert self.document is not None
            self.changed()

    def grow(self, text: str = "", reasoning: str = "") -> None:
        """Adds what was made; ``show`` brings it into view."""
        self.text += text
        self.reasoning += reasoning

    def show(self) -> None:
        """Takes what was added into the parts."""
        assert self.document is not None
        self._thought.forget()
        self._end.forget()
        self.changed()

    def finish(self, foot: str, trouble: bool = False) -> None:
        """The reply is whole."""
        self.foot, self.trouble = foot, trouble
        self.document.finish()
        self.show()

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self.show()

    def _draw_reasoning(self, width: int) -> list[Line]:
        head = Line((Run(f"{'▾' if self.unfolded else '▸'} {self.label}", "thought-label"),))
        if not self.unfolded:
            return [head]
        bar = Run("│ ", "thought")
        text = Text(sanitize(self.reasoning.strip()), "thought")
        return [head, *(line.behind(bar) for line in wrap(text, width - 2))]

    def _draw_end(self, width: int) -> list[Line]:
        versions = f"  ‹ {self.versions} ›" if self.versions else ""
        room = width - cells(versions)
        rows = (GAP.join(fields) for fields in filled(sanitize(self.foot).split(GAP), GAP, room))
        foot = wrap(Text("\n".join(rows), "trouble" if self.trouble else "foot"), room)
        first = foot[0]
        return [Line((*first.runs, Run(versions, "versions"))), *foot[1:]]


class Note(Entry):
    """A word of the app itself, between messages."""

    def __init__(self, text: str, trouble: bool = False) -> None:
        super().__init__()
        self.text = text
        style = "trouble" if trouble else "foot"
        self._rows = Rows(lambda width: wrap(Text(sanitize(self.text), style), width))

    @property
    def parts(self) -> Sequence[Part]:
        return (self._rows,)

    @property
    def copied(self) -> str:
        return self.text
