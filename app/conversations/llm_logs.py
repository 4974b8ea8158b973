"""The history of the ``llm`` command: its ``logs.db``, and what ``llm logs --json`` prints of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgeinfer.app.conversations.records import Attachment, Heading, Stats, Turn
from edgeinfer.app.conversations.trees import Node, Tree, as_dict, as_list, as_text
from edgeinfer.errors import BadInput

_WANTED = (
    "id", "model", "prompt", "system", "response", "conversation_id", "datetime_utc", "input_tokens", "output_tokens",
    "reasoning",
)  # fmt: skip
_MOST = 1_000_000  # responses
_BUSY = 5.0  # seconds to wait while llm writes


def is_export(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and {"prompt", "response"} <= as_dict(value[0]).keys()


def trees(rows: Sequence[Any]) -> list[Tree]:
    """From the objects of ``llm logs --json``, or rows of the table ``responses``; the oldest first within each."""
    found: dict[str, Tree] = {}
    for number, value in enumerate(sorted(map(as_dict, rows), key=_when)):
        home = as_text(value.get("conversation_id"))
        tree = found.setdefault(home or f"\0{number}", Tree(Heading(as_text(value.get("conversation_name")))))
        _append(tree, value)
    return list(found.values())


def read_database(path: Path) -> list[Tree]:
    """From the file of ``llm logs path``, which is only read. Raises BadInput for another database."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            columns = _columns(connection, "responses")
            if not {"prompt", "response"} <= columns:
                raise BadInput(f"{path.name}: a database without the responses of `llm`; see `llm logs path`")
            return trees(_responses(connection, columns))
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{path.name}: {error}; copy it with `llm logs backup` and import that") from None


def _responses(connection: sqlite3.Connection, columns: set[str]) -> list[dict[str, Any]]:
    wanted = [name for name in _WANTED if name in columns]
    names = dict(_rows(connection, "conversations", ("id", "name")))
    rows = [dict(zip(wanted, row, strict=True)) for row in _rows(connection, "responses", wanted)]
    for row in rows:
        row["conversation_name"] = names.get(row.get("conversation_id"))
    by_id = {row.get("id"): row for row in rows}
    fragments = {key: (source, content) for key, source, content in
                 _rows(connection, "fragments", ("id", "source", "content"))}  # fmt: skip
    for table in ("prompt_fragments", "system_fragments"):
        for response, fragment, _ in sorted(_rows(connection, table, ("response_id", "fragment_id", "order")), key=str):
            if response in by_id and fragment in fragments:
                source, content = fragments[fragment]
                by_id[response].setdefault(table, []).append({"source": source, "content": content})
    for response, content, _ in _reasoning(connection):
        if response in by_id:
            by_id[response]["reasoning"] = as_text(by_id[response].get("reasoning")) + as_text(content)
    return rows


def _reasoning(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    for response, direction, kind, content, order in sorted(
        _rows(connection, "parts", ("response_id", "direction", "part_type", "content", "order")), key=_place
    ):
        if (direction, kind) == ("output", "reasoning"):
            yield response, content, order


def _place(row: tuple[Any, ...]) -> int:
    return row[-1] if isinstance(row[-1], int) else 0


def _rows(connection: sqlite3.Connection, table: str, wanted: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows of a real table with all of these columns; none where there is no such table."""
    if not set(wanted) <= _columns(connection, table):
        return []
    columns = ", ".join(f'"{name}"' for name in wanted)
    return connection.execute(f"SELECT {columns} FROM {table} LIMIT {_MOST}").fetchall()


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """No view is read: it could compute without end."""
    kind = connection.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if kind != ("table",):
        return set()
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _append(tree: Tree, row: dict[str, Any]) -> None:
    """One exchange below the last one."""
    last = tree.nodes[-1].key if tree.nodes else None
    number = len(tree.nodes)
    created, model = _seconds(row), as_text(row.get("model"))
    system = "\n\n".join(filter(None, [*_fragments(row, "system_fragments"), as_text(row.get("system"))]))
    about = tree.heading
    tree.heading = replace(
        about,
        system=about.system or system,
        model=model or about.model,
        created=about.created or created,
        updated=created,
    )
    attachments = tuple(
        Attachment(as_text(one.get("source")) or "fragment", as_text(one.get("content")))
        for one in map(as_dict, as_list(row.get("prompt_fragments")))
    )
    stats = Stats(prompt=_count(row.get("input_tokens")), completion=_count(row.get("output_tokens")))
    asked = Turn("user", as_text(row.get("prompt")), attachments=attachments, model=model, created=created)
    answered = Turn(
        "assistant",
        as_text(row.get("response")),
        reasoning=as_text(row.get("reasoning")),
        state="done",
        model=model,
        stats=stats if stats != Stats() else None,
        created=created,
    )
    tree.nodes += [Node(str(number), last, asked), Node(str(number + 1), str(number), answered)]


def _fragments(row: dict[str, Any], name: str) -> list[str]:
    return [as_text(as_dict(one).get("content")) for one in as_list(row.get(name))]


def _when(row: dict[str, Any]) -> str:
    return as_text(row.get("datetime_utc"))


def _seconds(row: dict[str, Any]) -> float:
    try:
        found = datetime.fromisoformat(_when(row))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else 0
