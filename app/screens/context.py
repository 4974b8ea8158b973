"""The question when a conversation does not fit the context: numbers and ways out. Nothing is cut unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from edgeinfer.app.engine import in_thread
from edgeinfer.app.render.lines import cut
from edgeinfer.app.ways import DropOldest, Lengthen, Way
from edgeinfer.errors import ContextLimit, EdgeInferError
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.app.session import Session

ANSWER_TOKENS = 1024
"""Room for the answer that a longer context is to have."""
LISTED = 8
"""Messages that are listed by their first words before the rest is counted."""


class ContextScreen(ModalScreen[Way | None]):
    """Gives what was chosen; None leaves the message unanswered."""

    CSS_PATH: ClassVar[str] = "context.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back", show=False)]

    def __init__(self, session: Session, limit: ContextLimit) -> None:
        super().__init__()
        self._session, self._limit = session, limit
        self._longer = 0

    def compose(self) -> ComposeResult:
        needed, available = self._limit.needed, self._limit.available
        with Vertical(id="question"):
            yield Static(
                f"The conversation takes {needed - 1:,} tokens; the context holds {available:,}, "
                "and the answer needs some of them.",
                markup=False,
            )
            yield OptionList(
                Option("Load the model with a longer context …", id="longer", disabled=True),
                Option("Leave out the oldest messages …", id="drop", disabled=True),
                Option("Go back and shorten the message", id="back"),
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
        ways = self.query_one("#ways", OptionList)
        kept = await in_thread(self._kept_from)
        messages = self._session.messages()
        left = [message for message in messages[:kept] if message["role"] != "system"]
        if left:
            ways.replace_option_prompt("drop", f"Leave out the oldest {len(left):,} messages (they stay on the screen)")
            ways.enable_option("drop")
            lines = [cut(f"{row['role']}: {sanitize(row['content'], single_line=True)}", 200) for row in left[:LISTED]]
            more = [f"… and {len(left) - LISTED:,} more"] if len(left) > LISTED else []
            self.query_one("#listed", Static).update("\n".join(["These would not be read:", *lines, *more]))
        else:
            ways.replace_option_prompt("drop", "Nothing older can be left out: the last message alone is too long")
        self._longer, why = await in_thread(self._longest)
        if self._longer:
            ways.replace_option_prompt("longer", f"Load the model again with {self._longer:,} tokens of context")
            ways.enable_option("longer")
        else:
            ways.replace_option_prompt("longer", sanitize(f"No longer context: {why}", single_line=True))

    def _kept_from(self) -> int:
        llm = self._session.engine.llm
        return llm.kept_from(self._session.messages()) if llm is not None else 0

    def _longest(self) -> tuple[int, str]:
        """A context that holds the conversation and an answer, or why there is none."""
        from edgeinfer.llm import outline

        wanted = 1 << (self._limit.needed + ANSWER_TOKENS - 1).bit_length()
        try:
            found = outline(self._session.engine.wanted.model)
            found.close()
            wanted = min(wanted, found.needs.trained_context)
            if wanted <= self._limit.needed:
                return 0, f"the model was trained for {found.needs.trained_context:,} tokens"
            outline(self._session.engine.wanted.model, wanted).close()
        except EdgeInferError as error:
            return 0, str(error)
        return wanted, ""

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        ways: dict[str | None, Way] = {"drop": DropOldest(), "longer": Lengthen(self._longer)}
        self.dismiss(ways.get(event.option_id))
