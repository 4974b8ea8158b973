"""Small questions: a line, a text, one of several, a key. An answer is checked before the question goes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

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


class Choose(ModalScreen[str | None]):
    """One of several, by the arrows. ``preview`` is called with each that is gone over."""

    CSS_PATH: ClassVar[str] = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", show=False)]

    def __init__(
        self, title: str, choices: Mapping[str, str], chosen: str, preview: Callable[[str], object] | None = None
    ) -> None:
        """``choices``: what stands behind each."""
        super().__init__()
        self._title, self._choices, self._chosen, self._preview = title, choices, chosen, preview

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield OptionList(
                *(Option(f"{name}  {about}".rstrip(), id=name) for name, about in self._choices.items()),
                id="choices",
                markup=False,
            )

    def on_mount(self) -> None:
        box, choices = self.query_one("#ask"), self.query_one("#choices", OptionList)
        box.border_title, box.border_subtitle = self._title, "Enter · Esc"
        if self._chosen in self._choices:
            choices.highlighted = list(self._choices).index(self._chosen)

    @on(OptionList.OptionHighlighted)
    def _over(self, event: OptionList.OptionHighlighted) -> None:
        if self._preview is not None and event.option_id is not None:
            self._preview(event.option_id)

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class Write(ModalScreen[str | None]):
    """A text of several lines."""

    CSS_PATH: ClassVar[str] = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", show=False),
        Binding("ctrl+s", "save", "Save", show=False, priority=True),
    ]

    def __init__(self, title: str, value: str, about: str = "") -> None:
        super().__init__()
        self._title, self._value, self._about = title, value, about

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static(self._about, markup=False)
            yield TextArea(self._value, id="text", soft_wrap=True)

    def on_mount(self) -> None:
        box = self.query_one("#ask")
        box.border_title, box.border_subtitle = self._title, "Ctrl-S keeps it · Esc"

    def action_save(self) -> None:
        self.dismiss(self.query_one("#text", TextArea).text)


class PressKey(ModalScreen[str | None]):
    """Waits for a key. Esc leaves things as they are."""

    CSS_PATH: ClassVar[str] = "ask.tcss"

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static("Press the new key, or Esc.", markup=False)

    def on_mount(self) -> None:
        self.query_one("#ask").border_title = self._title

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)
