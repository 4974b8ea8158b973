"""Full-text search: every word of a query somewhere in a message, as parts of words and in any case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from edgeinfer.app.conversations.records import Hit

_LEAST = 3  # characters that the index can look up: it holds every run of three
_BEFORE, _AFTER = 30, 120  # characters shown around what was found


def words_of(query: str) -> list[str]:
    return query.replace("\0", " ").split()


def statement(words: Sequence[str], limit: int) -> tuple[str, list[Any]]:
    """The SQL that finds messages, the latest first, and its values. Short words are looked for without the index."""
    long = [word for word in words if len(word) >= _LEAST]
    short = [word for word in words if len(word) < _LEAST]
    conditions = ["conversations.deleted IS NULL"]
    values: list[Any] = []
    if long:
        conditions.append("messages.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" AND ".join(f'"{word.replace(chr(34), 2 * chr(34))}"' for word in long))
    for word in short:
        conditions.append("messages.state <> 'streaming' AND " + contains("messages.text"))
        values.append(like(word))
    sql = (
        "SELECT messages.conversation, messages.id, conversations.title, messages.role, messages.text,"
        " messages.created FROM messages JOIN conversations ON conversations.id = messages.conversation"
        f" WHERE {' AND '.join(conditions)} ORDER BY messages.id DESC LIMIT ?"
    )
    return sql, [*values, limit]


def contains(column: str) -> str:
    return f"{column} LIKE ? ESCAPE '\\'"


def like(word: str) -> str:
    """A pattern for LIKE that matches the word as it is, anywhere."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", word) + "%"


def hit(row: Sequence[Any], words: Sequence[str]) -> Hit:
    """One line around the first word that is found, with the place of every word in it."""
    conversation, message, title, role, text, created = row
    pattern = re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - _BEFORE) if first else 0
    shown = "…" * (start > 0) + re.sub(r"\s", " ", text[start : start + _BEFORE + _AFTER])
    marks = tuple(match.span() for match in pattern.finditer(shown))
    return Hit(conversation, message, title, role, shown, marks, created)
