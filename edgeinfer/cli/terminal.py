"""What commands share of the terminal: notes on stderr, stdin as text, figures for people."""

from __future__ import annotations

from typing import TextIO

import click

from edgeinfer.errors import BadInput
from edgeinfer.sanitize import sanitize


def note(text: str) -> None:
    """A line or more on stderr; never on stdout, which belongs to results."""
    click.echo(sanitize(text), err=True)


def human_bytes(count: float) -> str:
    """``98 MB``, ``1.3 GB``: powers of 1000, as disks and downloads are sold."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def read_text(stream: TextIO) -> str:
    """All of a stream, which must be UTF-8."""
    try:
        return stream.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"stdin: byte {error.start} is not UTF-8 ({error.reason}); convert the text first") from None
