"""What commands share of the terminal: notes on stderr, text from stdin and the command line, streams that are shut."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

import click

from edgeinfer.errors import BadInput
from edgeinfer.sanitize import sanitize


def note(text: str) -> None:
    """A line or more on stderr; never on stdout, which belongs to results. Nobody reading them stops nothing."""
    with suppress(OSError):
        click.echo(sanitize(text), err=True)


def read_text(stream: TextIO) -> str:
    """All of a stream, which must be UTF-8."""
    try:
        return stream.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"stdin: byte {error.start} is not UTF-8 ({error.reason}); convert the text first") from None
    except OSError as error:
        raise BadInput(f"stdin: cannot be read: {error.strerror}") from None


def checked_text(text: str, what: str) -> str:
    """Text of the command line as it is. Raises BadInput for bytes that are not UTF-8: they come as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{what}: character {error.start} is not UTF-8; convert the text first") from None
    return text


def open_missing_streams() -> None:
    """Puts the null device where the caller closed stdin, stdout or stderr.

    The lowest free descriptor is given out first: otherwise a model's file would become number 1, and be printed to.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def silence_stdout() -> None:
    """After a write that failed: what is still buffered goes nowhere, or the interpreter complains while it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
