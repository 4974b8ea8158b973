"""One line asked for: a title, a path, a value. The answer is checked before the question goes away."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from edgeinfer.errors import EdgeInferError
from edgeinfer.sanitize import sanitize


class Ask(ModalScreen[str | None]):
    """None where the question was left with Esc."""

    CSS_PATH: ClassVar[str] = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", show=False)]

    def __init__(
        self, title: str, value: str = "", about: str = "", check: Callable[[str], object] | None = None
    ) -> None:
        """``check`` raises an EdgeInferError for an answer that will not do; its message is shown."""
        super().__init__()
        self._title, self._value, self._about, self._check = title, value, about, check

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            if self._about:
                yield Static(sanitize(self._about), markup=False)
            yield Input(self._value, id="answer")
            yield Static("", id="problem", markup=False)

    def on_mount(self) -> None:
        box = self.query_one("#ask")
        box.border_title, box.border_subtitle = self._title, "Enter · Esc"

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        try:
            if self._check is not None:
                self._check(event.value)
        except EdgeInferError as error:
            self.query_one("#problem", Static).update(sanitize(str(error)))
            return
        self.dismiss(event.value)
