"""Opening the database file, and what is done when it is damaged, newer, another program's, or cannot be written."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.conversations.schema import APPLICATION, VERSION, migrate, version_of

_BUSY = 4.0  # seconds that one window waits for another's write
_CHECK = 0.15  # seconds that a file is looked through for damage
_STEPS = 20_000  # of SQLite's machine between two looks at the clock


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection; ``notice`` is what the user should know, ``kept`` whether what is written reaches the disk."""

    connection: sqlite3.Connection
    notice: str = ""
    kept: bool = True


class _Refused(Exception):
    """A sound file that is not ours to write; the message says why."""


def open_database(path: Path) -> Opened:
    """Opens the file, or makes it. What is wrong with it is no error: the notice says what was done about it.

    A damaged file is moved aside and a new one begun. A newer one, another program's and one that cannot be written
    are left as they are, and a database in memory takes their place, with what could be read.
    """
    try:
        return Opened(_connect(path))
    except _Refused as refusal:
        return Opened(_in_memory(None), f"{path}: {refusal}; until then chats are not kept", kept=False)
    except (sqlite3.OperationalError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return Opened(_in_memory(path), f"{path}: {why}; chats can be read, but nothing new is kept", kept=False)
    except sqlite3.DatabaseError as error:
        return _begin_anew(path, error)


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # nobody else reads what was said
    with ExitStack() as stack:
        connection = stack.enter_context(closing(_open(str(path))))
        _check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection)
        stack.pop_all()  # it stays open
    return connection


def _open(name: str, uri: bool = False, patience: float = _BUSY) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=patience, isolation_level=None, check_same_thread=False, uri=uri)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _check(connection: sqlite3.Connection) -> None:
    """Raises _Refused, or DatabaseError for a damaged file, as far as a short look shows."""
    version = version_of(connection)
    if version > VERSION:
        raise _Refused(f"written by a newer edgeinfer (format {version}; this one knows {VERSION}); update edgeinfer")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != APPLICATION:
        raise _Refused("a database of another program; move it away")
    until = time.monotonic() + _CHECK
    connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))


def _in_memory(path: Path | None) -> sqlite3.Connection:
    """A database in memory, with what can be read of the file."""
    connection = _open(":memory:")
    address = path.absolute().as_uri() if path else ""
    for mode in ("mode=ro", "immutable=1") if path else ():  # a folder that cannot be written has no place for the log
        with suppress(sqlite3.Error, _Refused), closing(_open(f"{address}?{mode}", True, 0)) as file:
            _check(file)
            file.backup(connection)
            break
    migrate(connection)
    return connection


def _begin_anew(path: Path, damage: sqlite3.DatabaseError) -> Opened:
    """A new file in the place of a damaged one; of two windows that find the damage, the second takes the first's."""
    from filelock import FileLock  # takes 10 ms, which the start of the app has not

    with FileLock(f"{path}.lock"):
        try:
            return Opened(_connect(path))
        except sqlite3.DatabaseError:
            aside = _set_aside(path)
            return Opened(_connect(path), f"{path} is damaged ({damage}); kept as {aside.name}, and a new one begun")


def _set_aside(path: Path) -> Path:
    """Moves the file and its log away."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.stem}.bad-{stamp}{path.suffix}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.stem}.bad-{stamp}-{number}{path.suffix}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside
