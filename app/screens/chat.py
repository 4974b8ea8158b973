"""The conversation: what was said, the reply as it is made, the prompt, and a line of figures."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.timer import Timer
from textual.widgets import Static, TextArea

from edgeinfer.app.commands import completed, hints, parsed
from edgeinfer.app.conversations import Message
from edgeinfer.app.render.entry import Entry, Note, Said, Told
from edgeinfer.app.render.figures import context_meter, foot, keys_and_values, per_step, rate, seconds
from edgeinfer.app.render.welcome import Welcome
from edgeinfer.app.screens.chatkeys import ChatKeys
from edgeinfer.app.session import Session
from edgeinfer.app.turns import Turns, attachment_note
from edgeinfer.app.ways import Way
from edgeinfer.app.widgets.figures import Figures
from edgeinfer.app.widgets.prompt import Prompt
from edgeinfer.app.widgets.status import StatusLine
from edgeinfer.app.widgets.transcript import Transcript
from edgeinfer.errors import BadRequest, ContextLimit
from edgeinfer.units import human_bytes

FRAME_SECONDS = 1 / 30
DRAFT_SECONDS = 0.3
"""After the last key, before what was typed is written to disk."""
FIGURE_SECONDS = 0.5


class ChatScreen(ChatKeys):
    CSS_PATH: ClassVar[str] = "chat.tcss"
    AUTO_FOCUS = "#prompt"
    NAME: ClassVar[str] = "chat"

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.turns = Turns(self)
        self._drafted: Timer | None = None
        self._used = 0  # tokens of the context, as far as they are known

    def compose(self) -> ComposeResult:
        yield Transcript()
        yield Figures(id="figures")
        yield Static("", id="hints", markup=False)
        yield Prompt()
        yield StatusLine(id="status")

    def on_mount(self) -> None:
        self.prompt.border_title = "Message"
        self.set_interval(FRAME_SECONDS, self.turns.frame)
        self.set_interval(FIGURE_SECONDS, self._tick)
        self.show_branch()

    # Conversations

    def show_branch(self) -> None:
        """Shows the session's branch from its end, with its draft in the prompt."""
        path = self.session.path
        places = self.session.places()
        entries = [entry_of(message, places.get(message.id, "")) for message in path]
        self.transcript.show(entries or [Welcome()])
        self.prompt.sent = [message.text for message in path if message.role == "user"]
        stats = next((message.stats for message in reversed(path) if message.stats), None)
        self._used = stats.prompt + stats.completion if stats else 0
        self.edit(None)
        self.show_figures()

    def open_conversation(self, conversation: int, leaf: int | None = None) -> None:
        """Leaves this conversation for another one, or for another branch."""
        if self.refused_while_busy():
            return
        self.keep_draft()
        self.session.open(conversation, leaf)
        self.show_branch()
        self.prompt.write(self.session.kept().draft)
        self.prompt.focus()

    def choose(self, message: int) -> None:
        """Goes to a message of the branch."""
        entries = self.transcript.entries
        place = next((place for place, entry in enumerate(entries) if entry.message == message), None)
        self.transcript.choose(place)

    def entered(self, message: Message) -> None:
        """The user's message was stored."""
        self._drop_welcome()
        self.transcript.add(entry_of(message, self.session.places().get(message.id, "")))
        self.transcript.follow()

    def answered(self, reply: Told, message: Message) -> None:
        """A reply is whole and stored."""
        reply.versions = self.session.places().get(message.id, "")
        reply.show()
        self.transcript.lay_out()
        if stats := message.stats:
            self._used = stats.prompt + stats.completion
            self.chat_app.speed, self.chat_app.first = stats.decode_rate, stats.first_token
            self.query_one(Figures).drafts(stats.tokens_per_step, stats.accepted, stats.drafted)
        self.show_figures()

    def complain(self, what: str) -> None:
        self.transcript.add(Note(what, trouble=True))
        self.transcript.follow()

    @work(group="turn")
    async def run_turn(self, text: str | None) -> None:
        await self.turns.run(text)

    async def ask_about_context(self, limit: ContextLimit) -> Way | None:
        """What to do with a conversation that does not fit."""
        from edgeinfer.app.screens.context import ContextScreen

        return await self.app.push_screen_wait(ContextScreen(self.session, limit))

    # The prompt

    @on(Prompt.Sent)
    def _sent(self, event: Prompt.Sent) -> None:
        try:
            command = parsed(event.text)
        except BadRequest as error:
            self.prompt.write(event.text)
            self.notify(str(error), severity="warning", markup=False)
            return
        if command is not None:
            self.chat_app.perform(command.action, command.argument)
            return
        if self.editing is not None:
            self.session.back_to(self.editing)
            self.show_branch()
        self.turns.take(event.text)

    @on(TextArea.Changed)
    def _typed(self) -> None:
        lines = hints(self.prompt.text, self.prompt.word) if len(self.prompt.text) < 4000 else []
        shown = self.query_one("#hints", Static)
        shown.update("\n".join(lines))
        shown.display = bool(lines)
        if self._drafted is not None:
            self._drafted.stop()
        self._drafted = self.set_timer(DRAFT_SECONDS, self.keep_draft)

    @on(Prompt.Completing)
    def _complete(self, event: Prompt.Completing) -> None:
        self.prompt.complete(completed(self.prompt.text, event.word))

    def keep_draft(self) -> None:
        """Writes to disk what was typed, and what waits for its turn."""
        text = "\n\n".join(part for part in (self.turns.unsaid, self.prompt.written) if part.strip())
        known = self.session.conversation
        if text or (known is not None and known.draft):
            self.session.draft(text)

    def interrupt(self) -> bool:
        """Ctrl-C: clears the prompt, which history keeps, or stops the reply. False where there was neither."""
        if self.prompt.text:
            self.prompt.put_aside()
            self.edit(None)
            return True
        if self.turns.busy:
            self.action_stop()
            return True
        return False

    # Figures

    @on(Transcript.Followed)
    def show_figures(self) -> None:
        """The status line as things are now."""
        if not self.query(StatusLine):  # it is being taken down
            return
        app, status, live = self.chat_app, self.query_one(StatusLine), self.turns.live
        busy = self.turns.busy and live is not None
        info = app.engine.llm.info if app.engine.llm else None
        speed, first = (live.rate, live.first) if live and busy else (app.speed, app.first)
        last = next((message for message in reversed(self.session.path) if message.stats), None)
        stats = last.stats if last and last.model == app.model_name else None  # what another model did says little here
        step = live.tokens_per_step if live and busy else stats.tokens_per_step if stats and stats.drafted else 0.0
        used = self._used + (live.tokens if live and busy else 0)
        status.fields = (
            app.model_line,
            context_meter(used, info.context) if info else "",
            rate(speed) if speed else "",
            f"first {seconds(first)}" if first else "",
            human_bytes(app.memory) if app.memory else "",
            keys_and_values(app.engine.llm, stats) if app.engine.llm else "",
            per_step(step) if step >= 1.05 else "",
        )
        status.hint = "Ctrl-End: to the end" if not self.transcript.following else "Esc stops" if busy else "F1 help"

    async def _tick(self) -> None:
        app, live = self.chat_app, self.turns.live
        app.memory = await app.engine.memory()
        if not self.is_mounted:
            return
        if app.memory:
            self.query_one(Figures).memory(app.memory)
        if self.turns.busy and live is not None and live.tokens:
            app.speed, app.first = live.rate, live.first
            self.query_one(Figures).speed(app.speed)
            if step := live.tokens_per_step:
                self.query_one(Figures).steps(step)
        self.show_figures()

    def _drop_welcome(self) -> None:
        for entry in [entry for entry in self.transcript.entries if isinstance(entry, Welcome)]:
            self.transcript.take_out(entry)


def entry_of(message: Message, place: str = "") -> Entry:
    """A stored message as the transcript shows it; ``place`` is "2/3" where it has siblings."""
    if message.role == "user":
        notes = [attachment_note(attachment) for attachment in message.attachments]
        return Said(message.text, message.id, [*notes, f"‹ {place} ›"] if place else notes)
    if message.role == "assistant":
        reply = Told(message.text, message.reasoning, message.id)
        reply.foot, reply.versions, reply.trouble = foot(message), place, message.state == "error"
        return reply
    return Note(f"{message.role}: {message.text}")
