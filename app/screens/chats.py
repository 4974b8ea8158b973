"""Chats: every conversation, searched as one types; open, rename, pin, delete, export, import."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.binding import BindingType
from textual.widgets.option_list import Option

from edgeinfer.app.actions import bindings
from edgeinfer.app.conversations import Conversation, Conversations, Hit
from edgeinfer.app.engine import in_thread
from edgeinfer.app.render.figures import counted
from edgeinfer.app.render.lines import cut
from edgeinfer.app.render.rows import columns, row
from edgeinfer.app.screens.ask import Ask
from edgeinfer.app.screens.picker import Picker
from edgeinfer.app.transfer import check_new, export, file_name, said_of
from edgeinfer.errors import BadRequest, EdgeInferError
from edgeinfer.sanitize import sanitize

MOST = 300
"""Conversations in the list; the search finds the others."""
_HITS = 60
_CHANGE_SECONDS = 1.0  # between two looks at what another window wrote
_WIDE, _TITLE = 70, 26  # cells of a row that has room for a title, and those of the title
_MARK = 3  # cells before a title: where one is, and a pin
_SPEAKER = {"user": "you", "assistant": "reply", "system": "system", "tool": "tool"}


class ChatsScreen(Picker):
    NAME = "chats"
    SEARCH = "Search every message"
    BINDINGS: ClassVar[list[BindingType]] = bindings("chats")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Conversation] = []
        self.hits: list[Hit] = []

    @property
    def store(self) -> Conversations:
        return self.chat_app.session.store

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(_CHANGE_SECONDS, self._look)
        self.refresh_rows()

    def _look(self) -> None:
        if self.store.changed():
            self.refresh_rows()

    def refresh_rows(self) -> None:
        query = self.query_text
        self.found = self.store.conversations(query, MOST)
        self.hits = self.store.search(query, _HITS)
        titles = [found.title for found in self.found]
        rows = [[self._length(found), when(found.updated)] for found in self.found]
        facts = columns(rows, titles, self.room - _MARK)
        options = [self._option(found, line) for found, line in zip(self.found, facts, strict=True)]
        options += [self._hit(hit) for hit in self.hits]
        if not options:
            text = "Nothing was said like this." if query else "No conversations yet."
            options = [Option(Text(text, "dim"), disabled=True)]
        self.fill(options)

    def pick(self, chosen: str) -> None:
        """Opens the conversation, at the message that was found."""
        chat = self.chat_app.chat
        if chat.turns.busy:
            self.say("A reply is being made; stop it before you leave the conversation.", trouble=True)
            return
        conversation, _, message = chosen.partition("/")
        try:
            leaf = self.store.tip(int(message)) if message else None
            chat.open_conversation(int(conversation), leaf)
            if message:
                chat.choose(int(message))
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
            self.refresh_rows()
            return
        self.dismiss()

    def about(self, chosen: str | None) -> str | Text:
        number = self._number
        found = next((one for one in self.found if one.id == number), None)
        if found is None:
            return ""
        parts = [f"begun {when(found.created)}", found.model, f"draft: {found.draft}" if found.draft else ""]
        return sanitize(" · ".join(part for part in parts if part), single_line=True)[:400]

    @work
    async def action_rename(self) -> None:
        if (found := self._chosen()) is None:
            return
        title = await self.app.push_screen_wait(Ask("Rename", found.title, check=_not_empty))
        if title:
            self.store.rename(found.id, title)
            self.refresh_rows()

    def action_pin(self) -> None:
        if (found := self._chosen()) is not None:
            self.store.pin(found.id, not found.pinned)
            self.refresh_rows()

    def action_delete(self) -> None:
        if (found := self._chosen()) is None:
            return
        chat, current = self.chat_app.chat, self.chat_app.session.conversation
        if current is not None and current.id == found.id:
            if chat.turns.busy:
                self.say("A reply is being made in it; stop it first.", trouble=True)
                return
            chat.action_new_chat()
            self.query_one("#search").focus()
        self.store.delete(found.id)
        self.say(f"Deleted “{found.title or 'untitled'}”. F9 undoes it; after a week it is gone.")
        self.refresh_rows()

    def action_undo(self) -> None:
        found = self.store.last_deleted()
        if found is None:
            self.say("Nothing was deleted in the last week.")
            return
        self.store.restore(found.id)
        self.say(f"Brought back “{found.title or 'untitled'}”.")
        self.refresh_rows()

    @work
    async def action_export(self) -> None:
        if (found := self._chosen()) is None:
            return
        about = "Files to write: NAME.md with this branch, NAME.json with every branch, which can be imported again."
        default = os.path.join(os.curdir, file_name(found))
        name = await self.app.push_screen_wait(Ask("Export", default, about, _new_files))
        if name:
            try:
                written = await in_thread(lambda: export(self.store, found.id, Path(name).expanduser()))
            except EdgeInferError as error:
                self.say(str(error), trouble=True)
            else:
                self.say(f"Wrote {' and '.join(map(str, written))}.")

    @work
    async def action_import(self) -> None:
        about = "ChatGPT's export (ZIP or conversations.json), llm's logs.db, or an export of edgeinfer."
        name = await self.app.push_screen_wait(Ask("Import", "", about, _not_empty))
        if not name:
            return
        from edgeinfer.app.conversations.imports import import_file

        try:
            imported = await in_thread(lambda: import_file(self.store, Path(name).expanduser()))
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
            return
        self.say(said_of(imported))
        self.refresh_rows()

    @property
    def _number(self) -> int | None:
        return int(self.chosen.partition("/")[0]) if self.chosen else None

    def _chosen(self) -> Conversation | None:
        if self._number is None:
            return None
        try:
            return self.store.conversation(self._number)
        except EdgeInferError as error:
            self.say(str(error), trouble=True)
            return None

    def _option(self, found: Conversation, facts: list[str]) -> Option:
        current = self.chat_app.session.conversation
        here = current is not None and current.id == found.id
        mark = f"{'●' if here else ' '}{'★' if found.pinned else ' '} "
        title = found.title or (f"Draft: {found.draft}" if found.draft else "Untitled")
        return Option(row(title[:500], facts, self.room, mark, "bold" if found.pinned else ""), id=str(found.id))

    def _length(self, found: Conversation) -> str:
        return counted(found.messages, "message") if self.room >= _WIDE else f"{found.messages:,}"

    def _hit(self, hit: Hit) -> Option:
        """The line that was found, its words marked, and on a wide screen the title of its conversation."""
        room = self.room - (_TITLE if self.room >= _WIDE else 0)
        text = Text(f"{' ' * _MARK}{_SPEAKER[hit.role]}: ", "dim", no_wrap=True, end="")
        at = max(0, hit.marks[0][0] - room // 3) if hit.marks else 0  # what was found is in sight
        for start, end in hit.marks:
            text.append(sanitize(hit.snippet[at:start], single_line=True), "not dim")
            text.append(sanitize(hit.snippet[start:end], single_line=True), "not dim bold reverse")
            at = end
        text.append(sanitize(hit.snippet[at:], single_line=True), "not dim")
        text.truncate(room, overflow="ellipsis", pad=True)
        if room < self.room:
            text.append("  " + cut(sanitize(hit.title, single_line=True), _TITLE - 2), "dim")
        return Option(text, id=f"{hit.conversation}/{hit.message}")


def when(seconds: float) -> str:
    """A moment as people say it: the time today, the day this year, else the date."""
    then, now = datetime.fromtimestamp(seconds), datetime.fromtimestamp(time.time())
    if then.date() == now.date():
        return then.strftime("%H:%M")
    return then.strftime("%d %b") if then.year == now.year else then.strftime("%d %b %Y")


def _not_empty(text: str) -> None:
    if not text.strip():
        raise BadRequest("type something, or leave with Esc")


def _new_files(name: str) -> None:
    _not_empty(name)
    check_new(Path(name).expanduser())
