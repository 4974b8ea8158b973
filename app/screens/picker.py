"""What the screens with a list share: a line to search in, the list, what is known of the chosen row, and the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from edgeinfer.app.actions import of_screen
from edgeinfer.app.render.lines import filled
from edgeinfer.app.screens.help import key_name
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.app.app import ChatApp

TALL = 18  # lines, below which the list takes them all
_GAP = "   "  # between keys
SEARCH_SECONDS = 0.05
"""After the last key, before the list is searched."""


class Picker(Screen[None]):
    """The search line keeps the focus: letters search, arrows choose, other keys act on the chosen row."""

    CSS_PATH: ClassVar[str] = "picker.tcss"
    AUTO_FOCUS = "#search"
    NAME: ClassVar[str] = ""  # the screen's rows in the registry
    SEARCH: ClassVar[str] = "Type to search"

    @property
    def chat_app(self) -> ChatApp:
        return cast("ChatApp", self.app)

    @property
    def rows(self) -> OptionList:
        return self.query_one("#rows", OptionList)

    @property
    def query_text(self) -> str:
        return self.query_one("#search", Input).value

    @property
    def chosen(self) -> str | None:
        """The id of the chosen row."""
        place = self.rows.highlighted
        return self.rows.get_option_at_index(place).id if place is not None else None

    @property
    def room(self) -> int:
        """Cells of a row."""
        return max(18, self.size.width - 7)

    def compose(self) -> ComposeResult:
        yield Input(placeholder=self.SEARCH, id="search", compact=True)
        yield Static("", id="heads", markup=False)
        yield OptionList(id="rows", markup=False)
        yield Static("", id="about", markup=False)
        yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#keys", Static).update(self._keys())

    def head(self, line: Text | None) -> None:
        """Shows the heads of the columns, above the list."""
        heads = self.query_one("#heads", Static)
        self.set_class(line is not None, "headed")
        heads.update(line or "")

    def refresh_rows(self) -> None:
        """Makes the list anew."""
        raise NotImplementedError

    def about(self, chosen: str | None) -> str | Text:
        """What the line below the list says of a row."""
        return ""

    def pick(self, chosen: str) -> None:
        """Enter, or a click."""
        raise NotImplementedError

    def fill(self, options: list[Option], keep: bool = True) -> None:
        """Shows rows; the chosen one stays chosen, or the first one is."""
        chosen = self.chosen if keep else None
        self.rows.set_options(options)
        places = [place for place, option in enumerate(options) if not option.disabled]
        if places:
            same = next((place for place in places if options[place].id == chosen), places[0])
            self.rows.highlighted = same
        self.tell()

    def tell(self) -> None:
        self.query_one("#about", Static).update(self.about(self.chosen))

    def say(self, text: str, trouble: bool = False) -> None:
        self.notify(sanitize(text), severity="warning" if trouble else "information", markup=False)

    def action_pick(self) -> None:
        if self.chosen is not None:
            self.pick(self.chosen)

    def action_back(self) -> None:
        self.dismiss()

    def action_up(self) -> None:
        self.rows.action_cursor_up()

    def action_down(self) -> None:
        self.rows.action_cursor_down()

    def action_page_up(self) -> None:
        if self._drawn:
            self.rows.action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self._drawn:
            self.rows.action_page_down()  # type: ignore[no-untyped-call]

    @property
    def _drawn(self) -> bool:
        """Whether rows have a place: pages of a list without one end in a KeyError of Textual's."""
        return self.rows.scrollable_content_region.area > 0

    @on(Input.Changed, "#search")
    def _search(self) -> None:
        self.set_timer(SEARCH_SECONDS, self._searched, name="search")

    def _searched(self) -> None:
        if self.is_mounted:
            self.refresh_rows()

    @on(Input.Submitted, "#search")
    def _submitted(self) -> None:
        self.refresh_rows()  # who types fast means what was typed, not what is still shown
        self.action_pick()

    @on(OptionList.OptionSelected, "#rows")
    def _selected(self, event: OptionList.OptionSelected) -> None:
        if event.option_id is not None:
            self.pick(event.option_id)

    @on(OptionList.OptionHighlighted, "#rows")
    def _highlighted(self) -> None:
        self.tell()

    def on_resize(self, event: events.Resize) -> None:
        self.refresh_rows()
        self.query_one("#keys", Static).update(self._keys())
        self.query_one("#about").display = event.size.height >= TALL

    def _keys(self) -> Text:
        """The keys as they are set now."""
        titles = {}  # by the words that are shown
        for action in of_screen(self.NAME):
            key = key_name(self.app._keymap.get(action.name, action.key).partition(",")[0])
            if key and action.shown:
                titles[f"{key} {action.title.lower()}"] = Text.assemble(
                    (key, "bold"), (f" {action.title.lower()}", "dim")
                )
        rows = filled(list(titles), _GAP, self.size.width - 4)
        return Text("\n").join(Text(_GAP).join(titles[words] for words in row) for row in rows)
