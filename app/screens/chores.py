"""Commands about the conversation as a whole: its model, title, system prompt, export and import."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import work
from textual.screen import Screen

from edgeinfer.app.engine import in_thread
from edgeinfer.errors import EdgeInferError
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.app.app import ChatApp
    from edgeinfer.app.session import Session
    from edgeinfer.app.turns import Turns


class Chores(Screen[None]):
    session: Session
    turns: Turns

    @property
    def chat_app(self) -> ChatApp:
        return cast("ChatApp", self.app)

    def action_model(self, name: str) -> None:
        if not name:
            self.chat_app.open_screen("models")
        elif self.turns.busy:
            self.tell("A reply is being made: Esc stops it.", trouble=True)
        else:
            self.chat_app.use_model(name)

    def action_template(self, name: str) -> None:
        if self.turns.busy:
            self.tell("A reply is being made: Esc stops it.", trouble=True)
        else:
            self.chat_app.load(replace(self.chat_app.engine.wanted, template=name))

    def action_rename(self, title: str) -> None:
        if title and self.session.conversation is not None:
            self.session.store.rename(self.session.conversation.id, title)
            self.session.conversation = self.session.store.conversation(self.session.conversation.id)
            self.tell(f"Renamed to “{self.session.conversation.title}”.")

    def action_system(self, text: str) -> None:
        """Sets the system prompt of this conversation, or says what it is."""
        found = self.session.kept()
        if text:
            self.session.store.use_system(found.id, text)
            self.session.conversation = found = self.session.store.conversation(found.id)
        self.tell(f"System prompt: {found.system or 'none'}")

    @work
    async def action_export(self, name: str) -> None:
        from edgeinfer.app.transfer import export, file_name

        found = self.session.conversation
        if found is None:
            self.tell("There is nothing to export yet.", trouble=True)
            return
        try:
            path = Path(name or file_name(found)).expanduser()
            written = await in_thread(lambda: export(self.session.store, found.id, path))
        except EdgeInferError as error:
            self.tell(str(error), trouble=True)
        else:
            self.tell(f"Wrote {' and '.join(map(str, written))}.")

    @work
    async def action_import(self, name: str) -> None:
        from edgeinfer.app.conversations.imports import import_file
        from edgeinfer.app.transfer import said_of

        try:
            imported = await in_thread(lambda: import_file(self.session.store, Path(name).expanduser()))
        except EdgeInferError as error:
            self.tell(str(error), trouble=True)
        else:
            self.tell(f"{said_of(imported)}\n/chats shows them.")

    def tell(self, text: str, trouble: bool = False) -> None:
        self.notify(sanitize(text), severity="warning" if trouble else "information", markup=False)
