"""The conversations of one database file, which any number of windows may share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from edgeinfer.app.conversations import database as db
from edgeinfer.app.conversations import search
from edgeinfer.app.conversations.opening import Opened, open_database
from edgeinfer.app.conversations.owner import gone, this_process
from edgeinfer.app.conversations.records import (
    ROLES,
    STATES,
    Attachment,
    Conversation,
    Hit,
    Message,
    Role,
    State,
    Stats,
    Turn,
)
from edgeinfer.errors import BadRequest, NotSaved

_TRASH = 7 * 24 * 3600.0  # seconds that a deleted conversation can be restored
_EMPTY = 24 * 3600.0  # seconds after which a conversation in which nothing was said is forgotten
_INTERRUPTED = "edgeinfer ended before the reply did"


class Conversations(db.Database):
    """Conversations and their trees of messages. Safe to use from several threads and by several windows.

    Every change is on the disk when its method returns, so that a killed process loses nothing that was said. Methods
    that change something raise NotSaved where the disk does not take it, with nothing half written, and BadRequest
    for a conversation or a message that is not there.
    """

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.connection)
        self.notice = opened.notice  # what the user should know of the file
        self.kept = opened.kept  # whether what is written reaches the disk
        self._seen = self.version()

    @cached_property
    def _owner(self) -> str:
        return this_process()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the file, or makes it. ``notice`` says what was wrong with it, if anything.

        Replies that a killed window left unfinished are marked as cancelled, and what was deleted a week ago goes.
        """
        store = cls(open_database(path))
        try:
            store.recover()
            store._forget()
        except NotSaved as error:
            store.notice = store.notice or str(error)
        return store

    # Conversations

    def start(self, title: str = "", model: str = "", system: str = "", preset: str = "") -> Conversation:
        """A new conversation without messages. Its title is its first message's, until it is given one."""
        values = {"title": db.one_line(title), "model": model, "system": system, "preset": preset}
        now = time.time()
        return self.conversation(self.insert("conversations", **values, owner=self._owner, created=now, updated=now))

    def conversation(self, conversation: int) -> Conversation:
        rows = self.rows(f"SELECT {db.CONVERSATION} FROM conversations WHERE id = ? AND deleted IS NULL", conversation)
        if not rows:
            raise BadRequest(f"there is no conversation {conversation}; another window may have deleted it")
        return db.conversation(rows[0])

    def conversations(self, title: str = "", limit: int = -1) -> list[Conversation]:
        """Those with a message or a draft, pinned ones first, then the latest; of a title that holds every word."""
        words = search.words_of(title)
        rows = self.rows(
            f"SELECT {db.CONVERSATION} FROM conversations WHERE deleted IS NULL AND (draft <> '' OR EXISTS"
            " (SELECT 1 FROM messages WHERE conversation = conversations.id))"
            + "".join(f" AND {search.contains('title')}" for _ in words)
            + " ORDER BY pinned DESC, updated DESC, id DESC LIMIT ?",
            *map(search.like, words),
            limit,
        )
        return [db.conversation(row) for row in rows]

    def rename(self, conversation: int, title: str) -> None:
        self._set(conversation, title=db.one_line(title))

    def pin(self, conversation: int, pinned: bool = True) -> None:
        self._set(conversation, pinned=int(pinned))

    def use_model(self, conversation: int, model: str) -> None:
        self._set(conversation, model=model)

    def use_system(self, conversation: int, system: str, preset: str = "") -> None:
        """The system prompt, and the name of the preset that it came from."""
        self._set(conversation, system=system, preset=preset)

    def look_at(self, conversation: int, leaf: int | None) -> None:
        """Keeps which branch is on the screen, so that it is there again when the conversation is opened next."""
        self._set(conversation, leaf=leaf)

    def keep_draft(self, conversation: int, text: str) -> None:
        """The prompt that is being written; empty once it was sent."""
        self._set(conversation, draft=text, owner=self._owner)

    def unsent(self) -> Conversation | None:
        """The latest conversation that holds a draft and nothing else, and that no living window wrote."""
        rows = self.rows(
            f"SELECT owner, {db.CONVERSATION} FROM conversations WHERE deleted IS NULL AND draft <> ''"
            " AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id) ORDER BY id DESC"
        )
        return next((db.conversation(row) for owner, *row in rows if gone(owner)), None)

    def delete(self, conversation: int) -> None:
        """Takes the conversation from every list and search; ``restore`` brings it back for a week."""
        self._set(conversation, deleted=time.time())

    def restore(self, conversation: int) -> None:
        self._set(conversation, deleted=None)

    def last_deleted(self) -> Conversation | None:
        """What ``restore`` would bring back first."""
        rows = self.rows(
            f"SELECT {db.CONVERSATION} FROM conversations WHERE deleted > ? ORDER BY deleted DESC, id DESC LIMIT 1",
            time.time() - _TRASH,
        )
        return db.conversation(rows[0]) if rows else None

    # Messages

    def add(
        self,
        conversation: int,
        parent: int | None,
        role: Role,
        text: str,
        *,
        reasoning: str = "",
        attachments: Sequence[Attachment] = (),
        state: State = "sent",
        model: str = "",
        stats: Stats | None = None,
        note: str = "",
        created: float | None = None,
    ) -> Message:
        """A new message below ``parent`` (None: at the root); beside its siblings, where it has some.

        A reply is added with ``state="streaming"`` before its first token is made.
        """
        _check(role, state)
        now = time.time()
        when = now if created is None else created
        turn = Turn(role, text, reasoning, tuple(attachments), state, model, stats, note, when)
        place = {"conversation": conversation, "parent": parent, "owner": self._owner}
        with self.write() as run:
            try:
                added = self.insert("messages", **place, **db.turn_columns(turn))
            except sqlite3.IntegrityError:
                raise BadRequest(f"conversation {conversation} holds no message {parent} to answer") from None
            run("UPDATE conversations SET leaf = ?, updated = ? WHERE id = ?", (added, now, conversation))
            if role == "user":
                title = db.one_line(text)
                run("UPDATE conversations SET title = ? WHERE id = ? AND title = ''", (title, conversation))
        return self.message(added)

    def grow(self, message: int, text: str, reasoning: str = "") -> None:
        """All that a streaming reply holds so far."""
        if not self.update("messages", message, text=text, reasoning=reasoning):
            raise _no_message(message)

    def finish(
        self,
        message: int,
        text: str,
        reasoning: str = "",
        state: State = "done",
        stats: Stats | None = None,
        note: str = "",
    ) -> Message:
        """The reply as it ended; ``note`` says why, where it did not end by itself."""
        _check("assistant", state)
        values = {"text": text, "reasoning": reasoning, "state": state, "stats": db.stats_json(stats), "note": note}
        if not self.update("messages", message, **values):
            raise _no_message(message)
        return self.message(message)

    def message(self, message: int) -> Message:
        rows = self.rows(f"SELECT {db.MESSAGE} FROM messages WHERE id = ?", message)
        if not rows:
            raise _no_message(message)
        return db.message(rows[0])

    def path(self, leaf: int) -> list[Message]:
        """The branch that ends with ``leaf``, from its root."""
        rows = self.rows(
            "WITH RECURSIVE branch(id, parent) AS (SELECT id, parent FROM messages WHERE id = ?1 UNION ALL"
            " SELECT messages.id, messages.parent FROM messages JOIN branch ON messages.id = branch.parent)"
            f" SELECT {db.MESSAGE} FROM messages WHERE id IN (SELECT id FROM branch) ORDER BY id",
            leaf,
        )
        return [db.message(row) for row in rows]

    def children(self, message: int) -> list[Message]:
        """The answers to a message, oldest first: the branches that leave it."""
        return self._below(self.message(message).conversation, message)

    def roots(self, conversation: int) -> list[Message]:
        return self._below(conversation, None)

    def siblings(self, message: int) -> list[Message]:
        """The versions of one turn, the message itself among them, oldest first."""
        found = self.message(message)
        return self._below(found.conversation, found.parent)

    def tip(self, message: int) -> int:
        """The end of the newest branch below a message; the message itself where nothing answers it."""
        rows = self.rows(
            "WITH RECURSIVE below(id) AS (SELECT id FROM messages WHERE id = ?1 UNION ALL"
            " SELECT messages.id FROM messages JOIN below ON messages.parent = below.id"
            " WHERE messages.conversation = (SELECT conversation FROM messages WHERE id = ?1))"
            " SELECT max(id) FROM below",
            message,
        )
        if rows[0][0] is None:
            raise _no_message(message)
        return int(rows[0][0])

    def tree(self, conversation: int) -> list[Message]:
        """Every message, parents before children."""
        rows = self.rows(f"SELECT {db.MESSAGE} FROM messages WHERE conversation = ? ORDER BY id", conversation)
        return [db.message(row) for row in rows]

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Messages that hold every word of the query, in any place and case, the latest first."""
        words = search.words_of(query)
        if not words:
            return []
        sql, values = search.statement(words, limit)
        return [search.hit(row, words) for row in self.rows(sql, *values)]

    # Windows

    def changed(self) -> bool:
        """Whether another window has written since the last call."""
        before, self._seen = self._seen, self.version()
        return before != self._seen

    def recover(self) -> int:
        """Marks replies as cancelled whose window is gone. Returns how many."""
        rows = self.rows("SELECT id, owner FROM messages WHERE state = 'streaming'")
        dead = [message for message, owner in rows if gone(owner)]
        for message in dead:
            self.update("messages", message, state="cancelled", note=_INTERRUPTED)
        return len(dead)

    def _forget(self) -> None:
        now = time.time()
        with self.write() as run:
            run("DELETE FROM conversations WHERE deleted < ?", (now - _TRASH,))
            run(
                "DELETE FROM conversations WHERE draft = '' AND updated < ? AND NOT EXISTS"
                " (SELECT 1 FROM messages WHERE conversation = conversations.id)",
                (now - _EMPTY,),
            )

    def _below(self, conversation: int, parent: int | None) -> list[Message]:
        rows = self.rows(
            f"SELECT {db.MESSAGE} FROM messages WHERE conversation = ? AND parent IS ? ORDER BY id",
            conversation,
            parent,
        )
        return [db.message(row) for row in rows]

    def _set(self, conversation: int, **values: Any) -> None:
        if not self.update("conversations", conversation, **values):
            raise BadRequest(f"there is no conversation {conversation}")


def _check(role: str, state: str) -> None:
    for name, value, known in (("role", role, ROLES), ("state", state, STATES)):
        if value not in known:
            raise BadRequest(f"{name}: found {value!r:.40}, expected one of {', '.join(known)}", name)


def _no_message(message: int) -> BadRequest:
    return BadRequest(f"there is no message {message}; another window may have deleted it")
