"""Keys and commands as they are set now, from the registry."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from edgeinfer.app.actions import ACTIONS, Action

_NAMES = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "enter": "Enter", "up": "Up"}


class HelpScreen(ModalScreen[None]):
    CSS_PATH: ClassVar[str] = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close", show=False)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._table(), id="table")

    def on_mount(self) -> None:
        self.query_one("#help").border_title = "Keys and commands"
        self.query_one("#help").border_subtitle = "Esc closes"
        self.query_one("#help").focus()

    def _table(self) -> Table:
        """A row for each action: what leads to it, and beside that what it does."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(max_width=17)
        table.add_column(overflow="fold")
        for action in ACTIONS:
            key, command = _ways(action, self.app._keymap.get(action.name, action.key))
            ways = Text(key, "bold")
            if key and command:
                ways.append("  " if len(f"{key}  {command}") <= 17 else "\n")
            table.add_row(ways.append(command, "not bold italic"), Text(action.help))
        return table


def _ways(action: Action, key: str) -> tuple[str, str]:
    return " ".join(key_name(each) for each in key.split(",") if each), f"{action.slash} {action.takes}".strip()


def key_name(key: str) -> str:
    """``ctrl+shift+n`` as people write it."""
    *held, last = key.split("+")
    shown = _NAMES.get(last, last.upper() if len(last) == 1 or last[1:].isdigit() else last.capitalize())
    return "-".join([*(each.capitalize() for each in held), shown])
