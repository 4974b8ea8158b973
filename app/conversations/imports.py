"""Conversations from a file of any kind that is known, told by what it holds, not by its name."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path
from typing import IO, Any

from edgeinfer.app.conversations import chatgpt, llm_logs, ours
from edgeinfer.app.conversations.store import Conversations
from edgeinfer.app.conversations.trees import Imported, Tree, plant
from edgeinfer.errors import BadInput
from edgeinfer.units import human_bytes

MOST_BYTES = 512 << 20
"""Of JSON in one file."""
_MOST_FILES = 64  # of a ZIP archive
_KINDS = "ChatGPT's export (ZIP or conversations.json), llm's logs.db or `llm logs --json`, or an export of edgeinfer"


def import_file(store: Conversations, path: Path) -> Imported:
    """Adds the conversations of a file. Raises BadInput for a file that is not one, NotSaved for a full disk."""
    return plant(store, read_file(path))


def read_file(path: Path) -> list[Tree]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path}: not a regular file; expected {_KINDS}")
        with path.open("rb") as file:
            magic = file.read(16)
            if magic == b"SQLite format 3\0":
                return llm_logs.read_database(path)
            file.seek(0)
            if magic.startswith(b"PK"):
                return _from_zip(file, path.name)
            return _from_json(file, path.name)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None


def _from_zip(file: IO[bytes], name: str) -> list[Tree]:
    try:
        with zipfile.ZipFile(file) as archive:
            members = [one for one in archive.infolist() if _is_conversations(one.filename)][:_MOST_FILES]
            if not members:
                raise BadInput(f"{name}: an archive without conversations.json; expected {_KINDS}")
            found: list[Tree] = []
            left = MOST_BYTES
            for member in members:
                with archive.open(member) as content:
                    data = _read(content, f"{name}: {member.filename}", left)
                left -= len(data)
                found += _trees(data, f"{name}: {member.filename}")
            return found
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise BadInput(f"{name}: {error}; download the export again") from None


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith("conversations") and base.endswith(".json")


def _from_json(file: IO[bytes], name: str) -> list[Tree]:
    return _trees(_read(file, name, MOST_BYTES), name)


def _read(file: IO[bytes], name: str, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise BadInput(f"{name}: more than {human_bytes(MOST_BYTES)}; split it into several files")
    return data


def _trees(data: bytes, name: str) -> list[Tree]:
    try:
        value: Any = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: byte {error.start} is not UTF-8; expected {_KINDS}") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{name}: line {error.lineno}: {error.msg}; expected {_KINDS}") from None
    except (RecursionError, ValueError):
        raise BadInput(f"{name}: nested too deep, or a number too long; expected {_KINDS}") from None
    if isinstance(value, dict) and value.get("format") == ours.FORMAT:
        return ours.from_json(value, name)
    rows = [value] if isinstance(value, dict) else value
    if chatgpt.is_export(rows):
        return chatgpt.trees(rows)
    if llm_logs.is_export(rows):
        return llm_logs.trees(rows)
    raise BadInput(f"{name}: no conversations that are known; expected {_KINDS}")
