"""Where one types: grows with the text, keeps large pastes as chips, remembers what was sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea

from edgeinfer.app.actions import bindings
from edgeinfer.units import human_bytes

CHIP_CHARACTERS = 10_000
CHIP_LINES = 40
_CHIP = re.compile(r"⟦[^⟦⟧\n]*⟧")


class Prompt(TextArea):
    """A text area whose Enter sends. ``written`` is all of its text, with what the chips stand for."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("chat", ["send", "newline"])

    @dataclass
    class Sent(Message):
        """What was written is to be sent."""

        text: str

    @dataclass
    class Completing(Message):
        """Tab was pressed behind a word that may be completed."""

        word: str

    def __init__(self) -> None:
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", highlight_cursor_line=False)
        self.sent: list[str] = []  # earlier messages
        self._chips: dict[str, str] = {}
        self._place: int | None = None  # in the history
        self._unsent = ""  # what was there before the history was looked at

    @property
    def written(self) -> str:
        return _CHIP.sub(lambda found: self._chips.get(found[0], found[0]), self.text)

    def write(self, text: str) -> None:
        """Puts a text in place of all, as a chip where it is large, with the cursor behind it."""
        self._chips.clear()
        self.load_text("")
        self.insert(self._shortened(text))
        self.move_cursor(self.document.end)

    def clear_text(self) -> None:
        self.write("")
        self._place = None

    def put_aside(self) -> None:
        """Empties it; what was written is in the history."""
        if self.text.strip():
            self.sent.append(self.written)
        self.clear_text()

    def unpack(self) -> None:
        """Puts the text itself in place of every chip."""
        text = self.written
        self._chips.clear()
        self.load_text(text)
        self.move_cursor(self.document.end)

    @property
    def word(self) -> str:
        """The word before the cursor, from the blank before it on."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        return before[re.search(r"\S*$", before).start() :]  # type: ignore[union-attr]  # it matches nothing, too

    def complete(self, word: str) -> None:
        """Puts a word in place of the one before the cursor."""
        row, column = self.cursor_location
        self.replace(word, (row, column - len(self.word)), (row, column))

    # What keys do

    def action_send(self) -> None:
        text = self.written
        if text.strip():
            self.sent.append(text)
            self.clear_text()
            self.post_message(self.Sent(text))

    def action_newline(self) -> None:
        start, end = self.selection
        self._replace_via_keyboard("\n", start, end)

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.cursor_at_first_line and self.sent:
            self._recall(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self.cursor_at_last_line and self._place is not None:
            self._recall(1)
        else:
            super().action_cursor_down(select)

    def action_delete_left(self) -> None:
        """A chip goes as a whole."""
        row, column = self.cursor_location
        chip = re.search(r"⟦[^⟦⟧\n]*⟧$", self.document.get_line(row)[:column])
        if chip and chip[0] in self._chips and self.selection.is_empty:
            self.delete((row, chip.start()), (row, column))
        else:
            super().action_delete_left()

    async def _on_key(self, event: events.Key) -> None:
        """Enter does what it is bound to; the base class would make a line of it."""
        if event.key == "enter" and "enter" in self.screen.active_bindings:
            event.prevent_default()
        elif event.key == "tab" and (self.word.startswith("@") or self.text.startswith("/")):
            event.prevent_default()
            event.stop()
            self.post_message(self.Completing(self.word))

    async def _on_paste(self, event: events.Paste) -> None:
        """A paste never sends; a large one becomes a chip."""
        event.prevent_default()
        event.stop()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if result := self._replace_via_keyboard(self._shortened(text), *self.selection):
            self.move_cursor(result.end_location)

    def _shortened(self, text: str) -> str:
        lines = text.count("\n") + 1
        if len(text) <= CHIP_CHARACTERS and lines <= CHIP_LINES:
            return text
        label = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        name = f"{label} · {human_bytes(len(text.encode(errors='replace')))}"
        number, chip = 1, f"⟦{name}⟧"
        while chip in self._chips and self._chips[chip] != text:
            number, chip = number + 1, f"⟦{name} · {number + 1}⟧"
        self._chips[chip] = text
        return chip

    def _recall(self, step: int) -> None:
        """Shows an earlier message, or again what was being written."""
        if self._place is None:
            self._unsent, self._place = self.written, len(self.sent)
        place = max(0, self._place + step)
        text = self.sent[place] if place < len(self.sent) else self._unsent
        self.write(text)
        self._place = place if place < len(self.sent) else None
