"""The question when a conversation does not fit the context: numbers and ways out. Nothing is cut unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from edgeinfer.app.engine import in_thread
from edgeinfer.app.render.lines import cut
from edgeinfer.app.ways import DropOldest, Way, described, lengthenings
from edgeinfer.errors import ContextLimit, EdgeInferError
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.app.session import Session

_BACK = "Go back and shorten the message"
LISTED = 8
"""Messages that are listed by their first words before the rest is counted."""


class _Row(NamedTuple):
    name: str
    text: str
    way: Way | None = None


class ContextScreen(ModalScreen[Way | None]):
    """Gives what was chosen; None leaves the message unanswered."""

    CSS_PATH: ClassVar[str] = "context.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back", show=False)]

    def __init__(self, session: Session, limit: ContextLimit) -> None:
        super().__init__()
        self._session, self._limit = session, limit
        self._ways: dict[str, Way] = {}  # by the id of their row

    def compose(self) -> ComposeResult:
        needed, available = self._limit.needed, self._limit.available
        with Vertical(id="question"):
            yield Static(
                f"The conversation takes {needed - 1:,} tokens; the context holds {available:,}, "
                "and the answer needs some of them.",
                markup=False,
            )
            yield OptionList(
                Option(_BACK, id="back"),
                Option("Looking for ways …", disabled=True),
                id="ways",
            )
            with VerticalScroll(id="left-out"):
                yield Static("", id="listed", markup=False)

    def on_mount(self) -> None:
        self.query_one("#question").border_title = "Too long for the context"
        self.query_one("#ways").focus()
        self.look()

    @work(group="context")
    async def look(self) -> None:
        """Finds out what can be done, away from the keys."""
        kept = await in_thread(self._kept_from)
        left = [message for message in self._session.messages()[:kept] if message["role"] != "system"]
        longer, notes = await in_thread(self._longer)
        if left:
            lines = [cut(f"{row['role']}: {sanitize(row['content'], single_line=True)}", 200) for row in left[:LISTED]]
            more = [f"… and {len(left) - LISTED:,} more"] if len(left) > LISTED else []
            notes += ["The oldest, which would not be read:", *lines, *more]
        self.query_one("#listed", Static).update("\n".join(notes))
        self._offer([*longer, self._drop(len(left)), _Row("back", _BACK)])

    def _offer(self, rows: list[_Row]) -> None:
        """Shows the ways; the first one that is open is chosen."""
        self._ways = {row.name: row.way for row in rows if row.way is not None}
        open_ways = [row.way is not None or row.name == "back" for row in rows]
        ways = self.query_one("#ways", OptionList)
        ways.set_options(
            Option(sanitize(row.text), id=row.name, disabled=not is_open)
            for row, is_open in zip(rows, open_ways, strict=True)
        )
        ways.highlighted = open_ways.index(True)

    def _drop(self, left: int) -> _Row:
        if not left:
            return _Row("drop", "Nothing older can be left out: the last message alone is too long")
        oldest = "the oldest message" if left == 1 else f"the oldest {left:,} messages"
        return _Row("drop", f"Leave out {oldest}, which stays on the screen", DropOldest())

    def _kept_from(self) -> int:
        llm = self._session.engine.llm
        return llm.kept_from(self._session.messages(), self._session.answer_tokens) if llm is not None else 0

    def _longer(self) -> tuple[list[_Row], list[str]]:
        """Longer contexts, with the present format of keys and values and with tighter ones, or why there is none.

        And what their prices were measured on.
        """
        from edgeinfer import library

        wanted, llm = self._session.engine.wanted, self._session.engine.llm
        try:
            trained = library.trained_context(wanted.model)
            formats = library.kv_formats(wanted.model) if llm is not None and llm.info.backend == "mlx" else []
        except EdgeInferError as error:
            return [_Row("longer", f"No longer context: {error}")], []
        now = next((each for each in formats if llm is not None and each.name == llm.info.kv), None)
        found = lengthenings(formats, now.name if now else "", self._limit.needed, trained)
        measured = dict.fromkeys(tighter.where for _, tighter in found if tighter is not None and tighter.where)
        rows = [_Row(f"longer-{way.kv}", described(way, tighter, now), way) for way, tighter in found]
        if not rows:
            rows = [_Row("longer", f"No longer context: {self._obstacle(trained)}")]
        return rows, [f"KV are keys and values, KL nats a token, {where}." for where in measured]

    def _obstacle(self, trained: int) -> str:
        if trained <= self._limit.needed:
            return f"the model was trained for {trained:,} tokens"
        return "the memory does not hold one in any format of keys and values"

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._ways.get(event.option_id or ""))
