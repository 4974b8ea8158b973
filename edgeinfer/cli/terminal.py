"""What commands share of the terminal: notes on stderr, stdin as text."""

from __future__ import annotations

from typing import TextIO

import click

from edgeinfer.errors import BadInput
from edgeinfer.sanitize import sanitize


def note(text: str) -> None:
    """A line or more on stderr; never on stdout, which belongs to results."""
    click.echo(sanitize(text), err=True)


def read_text(stream: TextIO) -> str:
    """All of a stream, which must be UTF-8."""
    try:
        return stream.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"stdin: byte {error.start} is not UTF-8 ({error.reason}); convert the text first") from None
