"""The tables, as the steps from one format of the file to the next. ``user_version`` counts the steps done."""

from __future__ import annotations

import sqlite3

APPLICATION = 0x65646765  # "edge": tells our files from other programs' databases

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE conversations (
          id INTEGER PRIMARY KEY,
          title TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', system TEXT NOT NULL DEFAULT '',
          preset TEXT NOT NULL DEFAULT '', pinned INTEGER NOT NULL DEFAULT 0, leaf INTEGER,
          draft TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
          created REAL NOT NULL, updated REAL NOT NULL, deleted REAL
        )""",
        """CREATE TABLE messages (
          id INTEGER PRIMARY KEY,
          conversation INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
          parent INTEGER CHECK (parent < id),
          role TEXT NOT NULL, text TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '',
          attachments TEXT NOT NULL DEFAULT '', state TEXT NOT NULL, model TEXT NOT NULL DEFAULT '',
          stats TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
          created REAL NOT NULL,
          UNIQUE (conversation, id),
          FOREIGN KEY (conversation, parent) REFERENCES messages(conversation, id) ON DELETE CASCADE
        )""",
        "CREATE INDEX children ON messages(conversation, parent, id)",
        "CREATE INDEX streaming ON messages(owner) WHERE state = 'streaming'",
        "CREATE VIEW whole AS SELECT id, text FROM messages WHERE state <> 'streaming'",
        "CREATE VIRTUAL TABLE words USING fts5(text, content='whole', content_rowid='id', tokenize='trigram')",
        """CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'streaming' BEGIN
          INSERT INTO words(rowid, text) VALUES (new.id, new.text);
        END""",
        """CREATE TRIGGER message_changed AFTER UPDATE OF text, state ON messages BEGIN
          INSERT INTO words(words, rowid, text) SELECT 'delete', old.id, old.text WHERE old.state <> 'streaming';
          INSERT INTO words(rowid, text) SELECT new.id, new.text WHERE new.state <> 'streaming';
        END""",
        """CREATE TRIGGER message_deleted AFTER DELETE ON messages WHEN old.state <> 'streaming' BEGIN
          INSERT INTO words(words, rowid, text) VALUES ('delete', old.id, old.text);
        END""",
        f"PRAGMA application_id = {APPLICATION}",
    ),
)
"""A parent is always older than its children, so no row can make a cycle. A reply is searchable once it is whole."""

VERSION = len(MIGRATIONS)


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the tables to this version, whole or not at all; of two windows one does it and the other waits."""
    if version_of(connection) >= VERSION:
        return
    with connection:  # commits, or rolls back
        connection.execute("BEGIN IMMEDIATE")
        for statements in MIGRATIONS[version_of(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
