"""Which rows are still to do, in which order: those of earlier runs left out, those that begin alike together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

from edgeinfer.batch.journal import Journal
from edgeinfer.batch.rows import Row
from edgeinfer.errors import BadInput

LOOKAHEAD_ROWS = 256
LOOKAHEAD_BYTES = 16 << 20


class Ledger:
    """What is known of the rows: which ids were seen, which rows are answered or reported. Eight bytes a hash."""

    def __init__(self) -> None:
        self.answered: dict[int, str] = {}  # hash of an id -> the row's digest
        self.reported: set[tuple[int, str]] = set()  # line, digest
        self._seen: dict[int, int] = {}  # hash of an id -> its line

    def recover(self, answers: Journal, errors: Journal) -> None:
        """Reads what earlier runs wrote. Raises BadInput for files of another job."""
        for line in answers.recover():
            self.answered[_hash(line["custom_id"])] = line["response"]["request_id"]
        for line in errors.recover():
            self.reported.add((line["line"], line["request_id"]))

    def todo(self, rows: Iterable[Row], output: str) -> Iterator[Row]:
        """The rows without an answer and without a report; a repeated id becomes a problem of its row.

        Raises BadInput where an answer stands in the output that was given to another row of the same id.
        """
        for row in rows:
            key = _hash(row.id)
            if (row.line, row.digest) in self.reported:
                self._seen.setdefault(key, row.line)
                continue
            first = self._seen.setdefault(key, row.line)
            if row.problem:
                yield row
            elif first != row.line:
                yield Row(row.line, row.id, row.digest, problem=f"custom_id {row.id!r} was used in line {first}")
            elif self.answered.get(key, row.digest) != row.digest:
                raise BadInput(
                    f"line {row.line}: {output} holds an answer to another row with the id {row.id!r:.60}; give the "
                    "row another id, or name another output file"
                )
            elif key not in self.answered:
                yield row


def by_prefix(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, a few hundred at a time put so that prompts with a common beginning follow each other."""
    rows = iter(rows)
    while group := _group(rows):
        yield from sorted(group, key=_beginning)


def _group(rows: Iterator[Row]) -> list[Row]:
    group: list[Row] = []
    room = LOOKAHEAD_BYTES
    for row in islice(rows, LOOKAHEAD_ROWS):
        group.append(row)
        room -= row.size
        if room < 0:
            break
    return group


def _beginning(row: Row) -> str:
    return row.prompt if isinstance(row.prompt, str) else json.dumps([row.options.get("tools"), row.prompt])


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
