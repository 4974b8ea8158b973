"""Rows as they stand in an input file, one at a time: JSON lines, CSV or text. No file is ever read whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgeinfer.batch.fields import JSON_FIELDS, TEXT_FIELDS, check_columns
from edgeinfer.errors import BadInput

MAX_LINE = 32 << 20
"""Bytes of one row."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One row; ``problem`` says why it has no ``value``."""

    line: int  # in the file, from 1
    value: dict[str, Any]
    size: int  # bytes
    problem: str = ""


def read_rows(path: Path) -> Iterator[Raw]:
    """The rows of a file, in its order; blank lines are no rows. The form follows from the name's ending.

    Raises BadInput for a file that cannot be read, or whose ending or CSV header says nothing to us.
    """
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise BadInput(f"{path.name}: expected a name that ends in {', '.join(_FORMS)}")
    try:
        with path.open("rb") as file:
            yield from form(file, path.name)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def count_rows(path: Path) -> int | None:
    """How many rows a file holds; None where reading it would use it up."""
    return sum(1 for _ in read_rows(path)) if path.is_file() else None


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each line with its number; of one that is too long, one byte more than the limit."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        while len(line) > MAX_LINE and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE + 1)


def _texts(file: BinaryIO) -> Iterator[tuple[int, str, str]]:
    """Number, text and problem of each line that is not blank."""
    for number, line in _lines(file):
        if len(line) > MAX_LINE:
            yield number, "", f"the line is longer than {MAX_LINE >> 20} MiB"
            continue
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield number, "", f"byte {error.start} of the line is not UTF-8 ({error.reason})"
            continue
        if text.strip():
            yield number, text, ""


def _json_lines(file: BinaryIO, name: str) -> Iterator[Raw]:
    for number, text, problem in _texts(file):
        value: Any = {}
        if not problem:
            try:
                value = json.loads(text, parse_constant=_refuse_constant)
            except RecursionError:
                problem = "the JSON is nested too deep"
            except ValueError as error:
                problem = f"not JSON: {error}"
            else:
                if not isinstance(value, dict):
                    problem = f"found {type(value).__name__}, expected a JSON object"
        yield Raw(number, {} if problem else value, len(text), problem)


def _plain_lines(file: BinaryIO, name: str) -> Iterator[Raw]:
    for number, text, problem in _texts(file):
        yield Raw(number, {} if problem else {"prompt": text}, len(text), problem)


def _comma_separated(file: BinaryIO, name: str, delimiter: str = ",") -> Iterator[Raw]:
    position = [0]

    def lines() -> Iterator[str]:
        for number, line in _lines(file):
            position[0] = number
            yield line.decode("utf-8", "surrogateescape")

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise BadInput(f"{name}: line 1: {error}") from None
    check_columns(header, name)
    while True:
        start = position[0] + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Raw(start, {}, 0, f"not CSV: {error}")
            continue
        if any(cell.strip() for cell in cells):
            yield _record(start, header, cells)


def _record(line: int, header: list[str], cells: list[str]) -> Raw:
    size = sum(map(len, cells))
    if len(cells) != len(header):
        return Raw(line, {}, size, f"found {len(cells)} cells, expected {len(header)} as in the header")
    value: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if any("\udc80" <= character <= "\udcff" for character in cell):
            return Raw(line, {}, size, f"{name}: not UTF-8")
        if cell == "":
            continue
        try:
            value[name] = cell if name in TEXT_FIELDS else json.loads(cell, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            expected = "JSON" if name in JSON_FIELDS else "a number, true or false"
            return Raw(line, {}, size, f"{name}: found {cell!r:.40}, expected {expected}")
    return Raw(line, value, size)


def _tab_separated(file: BinaryIO, name: str) -> Iterator[Raw]:
    return _comma_separated(file, name, "\t")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


_FORMS: dict[str, Callable[[BinaryIO, str], Iterator[Raw]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _comma_separated,
    ".tsv": _tab_separated,
    ".txt": _plain_lines,
}
