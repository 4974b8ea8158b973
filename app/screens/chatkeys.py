"""What the keys and commands of the chat screen do."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from edgeinfer.app.actions import bindings
from edgeinfer.app.render.entry import Entry, Said, Told
from edgeinfer.app.screens.chores import Chores
from edgeinfer.app.widgets.figures import Figures
from edgeinfer.app.widgets.prompt import Prompt
from edgeinfer.app.widgets.transcript import Transcript


class ChatKeys(Chores):
    """One method for each row of the registry."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("chat")

    editing: int | None = None  # the message that the next one stands in for
    _code_at = 0  # blocks of code that were copied in a row

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    def show_branch(self) -> None:
        raise NotImplementedError

    def run_turn(self, text: str | None) -> object:
        raise NotImplementedError

    def give_back(self, text: str) -> None:
        """Puts a text that could not be sent into the prompt again, before what was typed since."""
        self.prompt.write("\n\n".join(part for part in (text, self.prompt.written) if part))

    def reconsider(self) -> None:
        """Puts the last message into the prompt again, to be changed, unless something else is being written."""
        last = next((entry for entry in reversed(self.transcript.entries) if isinstance(entry, Said)), None)
        if last is not None and not self.prompt.text:
            self._change(last)

    def edit(self, message: int | None) -> None:
        """The next message takes the place of ``message``; None: it comes after the others."""
        self.editing = message
        self.prompt.border_title = "Message" if message is None else "Edit an earlier message (Esc leaves it as it was)"

    def refused_while_busy(self) -> bool:
        if self.turns.busy:
            self.notify("A reply is being made: Esc stops it.")
        return self.turns.busy

    def action_stop(self) -> None:
        if self.turns.busy:
            waiting = self.turns.give_back()
            self.turns.stop()
            if waiting:
                self.give_back(waiting)
        elif self.editing is not None:
            self.edit(None)
            self.prompt.put_aside()
        elif self.transcript.chosen is not None:
            self.transcript.choose(None)
        self.prompt.focus()

    def action_retry(self) -> None:
        if self.refused_while_busy():
            return
        reply = self._near(Told)
        last = self.session.path[-1] if self.session.path else None
        if last is None:
            return
        if reply is not None and reply.message is not None and last.role == "assistant":
            self.session.back_to(reply.message)
        self.show_branch()
        self.run_turn(None)

    def action_edit(self) -> None:
        if self.refused_while_busy():
            return
        entry = self._near(Said)
        if entry is not None:
            self.prompt.put_aside()
            self._change(entry)

    def action_branch(self) -> None:
        if self.refused_while_busy():
            return
        chosen = self.transcript.chosen
        entries = self.transcript.entries if chosen is None else [self.transcript.entries[chosen]]
        for entry in reversed(entries):
            if entry.message is not None and self.session.switch(entry.message, 1):
                self.show_branch()
                if chosen is not None and chosen < len(self.transcript.entries):
                    self.transcript.choose(chosen)
                return
        self.notify("There is no other branch here: /retry and /edit make one.")

    def action_copy_reply(self) -> None:
        entry = self._chosen or self._near(Told)
        if entry is not None:
            self.chat_app.copy(entry.copied, f"{len(entry.copied):,} characters")

    def action_copy_code(self) -> None:
        blocks = [block for entry in self.transcript.entries if isinstance(entry, Told) for block in entry.code()]
        if not blocks:
            self.notify("There is no block of code yet.")
            return
        self._code_at = self._code_at % len(blocks) + 1
        block = blocks[-self._code_at]
        self.chat_app.copy(block, f"block {self._code_at} of {len(blocks)}, {block.count(chr(10)) + 1:,} lines")

    def action_reasoning(self) -> None:
        folds = [entry for entry in self.transcript.entries if isinstance(entry, (Told, Said)) and entry.folds]
        entry = self._chosen if self._chosen in folds else (folds[-1] if folds else None)
        if isinstance(entry, (Told, Said)):
            entry.toggle()
            self.transcript.lay_out()

    def action_panel(self) -> None:
        panel = self.query_one(Figures)
        panel.display = not panel.display

    def action_attach(self, path: str) -> None:
        self.prompt.insert(f'@"{path}" ' if " " in path else f"@{path} ")

    def action_expand(self) -> None:
        self.prompt.unpack()

    def action_new_chat(self) -> None:
        if self.refused_while_busy():
            return
        self.session.draft("")
        self.session.begin()
        self.show_branch()
        self.prompt.focus()

    def action_reload(self, tokens: str) -> None:
        if tokens and not tokens.isdecimal():
            self.notify(f"/reload {tokens}: expected a number of tokens", severity="warning", markup=False)
            return
        self.chat_app.reload(context=int(tokens) if tokens else None)

    def action_earlier(self) -> None:
        self._step(-1)

    def action_later(self) -> None:
        self._step(1)

    def action_page_up(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.transcript.scroll_page_down(animate=False)

    def action_follow(self) -> None:
        self.transcript.choose(None)
        self.transcript.follow()

    @property
    def _chosen(self) -> Entry | None:
        return self.transcript.entries[self.transcript.chosen] if self.transcript.chosen is not None else None

    def _near(self, kind: type[Entry]) -> Entry | None:
        """The chosen message if it is of this kind, else what it answers or what answers it, else the last of all."""
        entries, chosen = self.transcript.entries, self.transcript.chosen
        near = [] if chosen is None else entries[chosen::-1] if kind is Said else entries[chosen:]
        return next((entry for entry in (*near, *reversed(entries)) if isinstance(entry, kind)), None)

    def _change(self, said: Entry) -> None:
        """The prompt holds a message that was sent; what is sent next takes its place."""
        if said.message is not None:
            self.prompt.write(said.copied)
            self.edit(said.message)

    def _step(self, step: int) -> None:
        """Chooses another message; past the last one, none."""
        count, chosen = len(self.transcript.entries), self.transcript.chosen
        place = (count if chosen is None else chosen) + step
        self.transcript.choose(max(0, place) if place < count else None)
