"""Texts that commands take: a file, or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from edgeinfer.errors import BadInput

_MOST_TEXT = 256 << 20  # bytes


def read_text(name: str | None) -> str | None:
    """A file's text, or stdin's. Raises BadInput for what is no text."""
    if name is None:
        return None
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            data = file.read(_MOST_TEXT + 1)
        if len(data) > _MOST_TEXT:
            raise BadInput(f"{name}: more than {_MOST_TEXT >> 20} MiB of text; cut it, or use fewer windows")
        return data.decode()
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}; give a text file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: byte {error.start} is not UTF-8; convert the text first") from None
