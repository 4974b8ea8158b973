"""One connection: whole writes or none, and the values that rows are made of."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from types import TracebackType
from typing import Any, Self, TypeAlias

from edgeinfer.app.conversations.records import Attachment, Conversation, Message, Stats, Turn
from edgeinfer.errors import NotSaved

MESSAGE = "id, conversation, parent, role, text, reasoning, attachments, state, model, stats, note, created"
CONVERSATION = (
    "id, title, model, system, preset, pinned, leaf, draft,"
    " (SELECT count(*) FROM messages WHERE conversation = conversations.id), created, updated"
)

Run: TypeAlias = Callable[..., sqlite3.Cursor]


class Database:
    """A connection that several threads may use, one at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.RLock()

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                raise NotSaved(f"the chats cannot be read: {error}") from None

    @contextmanager
    def write(self) -> Iterator[Run]:
        """A transaction. Raises NotSaved where the disk does not take it; nothing of it is then kept."""
        with self._lock:
            if self._connection.in_transaction:  # a part of a larger write
                yield self._connection.execute
                return
            try:
                with self._connection:  # commits, or rolls back
                    self._connection.execute("BEGIN IMMEDIATE")
                    yield self._connection.execute
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                raise NotSaved(f"the chat could not be saved: {error}") from None

    def insert(self, table: str, **values: Any) -> int:
        """Adds a row. Returns its id."""
        marks = ", ".join("?" for _ in values)
        with self.write() as run:
            made = run(f"INSERT INTO {table}({', '.join(values)}) VALUES ({marks})", _cleaned(values))
            return int(made.lastrowid or 0)

    def update(self, table: str, row: int, **values: Any) -> int:
        """Sets columns of a row. Returns how many rows there were with that id."""
        columns = ", ".join(f"{name} = ?" for name in values)
        with self.write() as run:
            return run(f"UPDATE {table} SET {columns} WHERE id = ?", (*_cleaned(values), row)).rowcount

    def version(self) -> int:
        """A number that changes when another connection writes."""
        return int(self.rows("PRAGMA data_version")[0][0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def message(row: Sequence[Any]) -> Message:
    """From the columns of MESSAGE."""
    (number, conversation, parent, role, text, reasoning, attachments, state, model, stats, note, created) = row
    return Message(
        id=number,
        conversation=conversation,
        parent=parent,
        role=role,
        text=text,
        reasoning=reasoning,
        attachments=_attachments(attachments),
        state=state,
        model=model,
        stats=Stats.read(json.loads(stats)) if stats else None,
        note=note,
        created=created,
    )


def conversation(row: Sequence[Any]) -> Conversation:
    """From the columns of CONVERSATION."""
    number, title, model, system, preset, pinned, leaf, draft, messages, created, updated = row
    return Conversation(
        id=number,
        title=title,
        model=model,
        system=system,
        preset=preset,
        pinned=bool(pinned),
        leaf=leaf,
        draft=draft,
        messages=messages,
        created=created,
        updated=updated,
    )


def turn_columns(turn: Turn) -> dict[str, Any]:
    """Columns of the table of messages."""
    columns = {item.name: getattr(turn, item.name) for item in fields(Turn)}
    columns["attachments"] = _attachments_json(turn.attachments)
    return columns | {"stats": stats_json(turn.stats)}


def stats_json(stats: Stats | None) -> str:
    return json.dumps(asdict(stats)) if stats else ""


def _attachments_json(attachments: Sequence[Attachment]) -> str:
    rows = [asdict(attachment) for attachment in attachments]
    return json.dumps(rows, ensure_ascii=False) if rows else ""


def _attachments(text: str) -> tuple[Attachment, ...]:
    return tuple(Attachment(**row) for row in json.loads(text)) if text else ()


def _cleaned(values: Mapping[str, Any]) -> list[Any]:
    return [clean(value) if isinstance(value, str) else value for value in values.values()]


def clean(text: str) -> str:
    """The text, with halves of characters (lone surrogates), which no file can hold, replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def one_line(text: str, most: int = 80) -> str:
    """The beginning of a text as a title."""
    words = " ".join(text[: 8 * most].split())
    return clean(words if len(words) <= most else words[: most - 1] + "…")
