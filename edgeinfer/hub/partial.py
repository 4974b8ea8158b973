"""A file that is still arriving: ``NAME.part``, and beside it what is needed to go on after a crash."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from edgeinfer.errors import BadInput, CorruptFile, DiskLimit
from edgeinfer.hub.model import Remote
from edgeinfer.units import human_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PIECE = 1 << 20
_LARGEST_JSON = 1 << 20
DISK_MARGIN = 64 << 20  # left free on purpose


@contextmanager
def disk_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turns an OSError about path into a DiskLimit or a BadInput of one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = free_bytes(path.parent)
            message = (
                f"{path.name}: the disk is full ({human_bytes(free)} free); make room and run the same command again"
            )
            raise DiskLimit(message, needed, free) from None
        if error.errno == errno.ELOOP:
            raise BadInput(f"{path} is a symbolic link where a file of ours should be; remove it") from None
        raise BadInput(
            f"{path}: cannot write: {error.strerror}; set `models` to a folder that can be written"
        ) from None


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk that folder is on or would be made on."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_space(folder: Path, needed: int, what: str) -> None:
    free = free_bytes(folder)
    if needed + DISK_MARGIN > free:
        sizes = f"needs {human_bytes(needed)} of disk, {folder} has {human_bytes(free)} free"
        raise DiskLimit(f"{what} {sizes}; make room or set `models`", needed, free)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """The value in a small JSON file. Raises OSError or ValueError, also for what is no file: it may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_JSON:
        raise ValueError(f"{path} is no small file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a small JSON file that is the old one or the new one, whenever the power goes. One writer at a time."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with temporary.open("x", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Makes renames in folder durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def state_of(target: Path) -> Path:
    """The note beside an unfinished target: which content its bytes are of."""
    return target.with_name(f"{target.name}.part.json")


class Partial:
    """The bytes of target that are here, hashed as they come. Bytes of an earlier run are hashed again at first.

    ``validator`` is the ETag or date of the content they are part of. Without a known SHA-256 and without a
    validator, bytes of an earlier run cannot be trusted and are dropped.
    """

    def __init__(self, target: Path, remote: Remote) -> None:
        self.target = target
        self.remote = remote
        self.path = target.with_name(f"{target.name}.part")
        self.state = state_of(target)
        self.validator = ""
        self.total = remote.size
        self.length = 0
        self._digest = hashlib.sha256()
        with disk_errors(self.path):
            target.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.fdopen(os.open(self.path, flags, 0o644), "r+b", buffering=0)
        self._take_up()

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    @property
    def complete(self) -> bool:
        return self.total is not None and self.length == self.total

    def begin(self, validator: str, total: int | None) -> None:
        """Notes which content the bytes from here on belong to."""
        self.validator = validator
        self.total = self.remote.size if total is None else total
        saved = {"url": self._url, "sha256": self.remote.sha256, "validator": validator, "size": self.total}
        with disk_errors(self.state):
            write_json(self.state, saved)

    def append(self, piece: bytes) -> None:
        needed = len(piece) if self.total is None else self.total - self.length
        with disk_errors(self.path, needed):
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view) :]
        self._digest.update(piece)
        self.length += len(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.length = 0
        self.validator = ""
        self.total = self.remote.size
        self._digest = hashlib.sha256()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def finish(self) -> str:
        """Checks the SHA-256, makes the file durable and gives it its name. Returns the SHA-256."""
        found = self._digest.hexdigest()
        if self.remote.sha256 and found != self.remote.sha256:
            self.discard()
            problem = f"found {found[:16]}…, expected {self.remote.sha256[:16]}…; removed, pull it again"
            raise CorruptFile(self.target, "sha256", None, problem)
        with disk_errors(self.target):
            os.fsync(self._file.fileno())
            self._file.close()
            self.path.replace(self.target)
            sync_folder(self.target.parent)
            self.state.unlink(missing_ok=True)
        return found

    @property
    def _url(self) -> str:
        return self.remote.url.partition("?")[0]

    def _take_up(self) -> None:
        saved = self._saved()
        same = saved.get("sha256") == self.remote.sha256
        if not self.remote.sha256:
            same = same and saved.get("url") == self._url and bool(saved.get("validator"))
        if not same:
            self.restart()
            return
        self.validator = str(saved.get("validator", ""))
        if self.total is None and isinstance(saved.get("size"), int):
            self.total = saved["size"]
        while piece := self._file.read(_PIECE):
            self._digest.update(piece)
            self.length += len(piece)
        if self.total is not None and self.length > self.total:
            self.restart()

    def _saved(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):  # a torn or foreign file is the same as none
            saved = read_json(self.state)
            if isinstance(saved, dict):
                return saved
        return {}
