"""Files that lines are appended to, whole or not at all: a kill at any moment costs at most a second of them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edgeinfer.errors import BadInput, DiskLimit
from edgeinfer.units import human_bytes

SYNC_SECONDS = 1.0
"""Between two syncs, at most."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FIRST = b'{"id": "'  # how each of our lines begins


class Journal:
    """One file of JSON lines with one writer, which every other process is told to leave alone."""

    def __init__(
        self,
        path: Path,
        check: Callable[[Mapping[str, Any]], str],
        clock: Callable[[], float],
        keep_empty: bool = True,
    ) -> None:
        """Opens the file or creates it. ``check`` says why a line is not of this job, or nothing; without
        ``keep_empty`` a file that nothing was written to is not left behind.

        Raises BadInput for a file that cannot be written, or that another process is writing.
        """
        self.path = path
        self._check = check
        self._clock = clock
        self._keep_empty = keep_empty
        self._synced = clock()
        self._dirty = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}; name a file that can be written") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise BadInput(f"{path.name}: another process is writing it; wait for it or name another file") from None
        self._end = os.fstat(self._file).st_size

    def recover(self) -> Iterator[Mapping[str, Any]]:
        """Every line that is there. A torn end, as a kill or a power failure leaves it, is cut off after the last one.

        Raises BadInput for a file that holds anything else.
        """
        end, broken = 0, b""
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, start=1):
                row = _parsed(line)
                if row is None:
                    broken = broken or line
                    continue
                problem = "a broken line before it" if broken else self._check(row)
                if problem:
                    raise self._foreign(number, problem)
                end += len(line)
                yield row
        if broken and not (broken.startswith(_FIRST) or _FIRST.startswith(broken) or not broken.strip(b"\0\n")):
            raise self._foreign(1, "not a line that edgeinfer batch wrote")
        self._cut(end)

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one line, and syncs when the last sync is a second ago. Raises DiskLimit when there is no room."""
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
        except OSError as error:
            self._cut(self._end)
            raise self._refused(error, len(line)) from None
        self._end += len(line)
        self._dirty = True
        self.sync_if_due()

    def sync_if_due(self) -> None:
        if self._dirty and self._clock() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """What was appended is on the disk after this."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._refused(error, 0) from None
        self._dirty = False
        self._synced = self._clock()

    def close(self) -> None:
        """Syncs and lets the file go."""
        try:
            self.sync()
            if not (self._end or self._keep_empty):
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sort(self, place: Callable[[Mapping[str, Any]], int]) -> None:
        """Puts the lines in the order of ``place``, through a second file that takes the first one's name."""
        self.sync()
        with open(self._file, "rb", closefd=False) as lines:
            lines.seek(0)
            places: list[tuple[int, int]] = []
            offset = 0
            for line in lines:
                places.append((place(json.loads(line)), offset))
                offset += len(line)
            if places == sorted(places):
                return
            other = self.path.with_name(self.path.name + ".sorting")
            try:
                with other.open("wb") as file:
                    for _, start in sorted(places):
                        lines.seek(start)
                        file.write(lines.readline())
                    file.flush()
                    os.fsync(file.fileno())
                other.replace(self.path)
            except OSError as error:
                other.unlink(missing_ok=True)
                raise self._refused(error, offset) from None

    def _cut(self, end: int) -> None:
        os.ftruncate(self._file, end)
        self._end = end

    def _foreign(self, number: int, problem: str) -> BadInput:
        return BadInput(
            f"{self.path.name}: line {number}: {problem}; it belongs to another job: name another output file, or "
            "move this one away"
        )

    def _refused(self, error: OSError, needed: int) -> BadInput | DiskLimit:
        if error.errno not in _FULL:
            return BadInput(f"{self.path}: {error.strerror}")
        free = shutil.disk_usage(self.path.parent).free
        return DiskLimit(
            f"{self.path.name}: {error.strerror} ({human_bytes(free)} free); what is done is safe: make room and give "
            "the same command again",
            needed,
            free,
        )


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    """The object of a whole line."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
