"""One file mapped into memory, with a guard against its changing underneath."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from mmap import ACCESS_READ, MADV_DONTNEED, PAGESIZE, mmap
from pathlib import Path

from edgeinfer.errors import (
    CorruptFile,
    EdgeInferError,
    EngineClosed,
    MemoryLimit,
    ModelError,
    ModelNotFound,
    UnsupportedModel,
)


class MappedFile:
    """A regular file, held open and mapped read-only.

    Touching a page of a mapping behind the end of a file that has shrunk kills the process (SIGBUS); hence
    ``check_unchanged`` before each read.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFound, CorruptFile for an empty or unreadable file, UnsupportedModel for what is no file."""
        self.closed = True
        self.path = path
        self._file = _open(path)
        with ExitStack() as opened:
            opened.callback(os.close, self._file)
            self._seen = _identity(self._file)
            size = self._seen[0]
            if size == 0:
                raise CorruptFile(path, "file", 0, "the file is empty; download it again")
            try:
                self.data = mmap(self._file, size, access=ACCESS_READ)
            except OSError as error:
                raise _unmapped(path, size, error) from None
            opened.pop_all()
        self.closed = False

    def check_unchanged(self) -> None:
        """Raises CorruptFile if the file is not as it was when opened, EngineClosed after ``close``."""
        if self.closed:
            raise EngineClosed(f"{self.path.name} was closed; open it again")
        size, _ = now = _identity(self._file)
        if now != self._seen:
            was = self._seen[0]
            raise CorruptFile(
                self.path,
                "file",
                min(size, was),
                f"changed while in use: {size} bytes now, {was} when opened; load it again",
            )

    def release(self, start: int, size: int) -> None:
        """Lets go of the memory that pages of these bytes took; reading them again reads the file."""
        first = start // PAGESIZE * PAGESIZE
        if not self.closed and hasattr(self.data, "madvise") and size:
            self.data.madvise(MADV_DONTNEED, first, start + size - first)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Views made earlier stay valid: the last of them takes the mapping with it. Twice is once."""
        if self.closed:
            return
        self.closed = True
        os.close(self._file)
        with suppress(BufferError):  # a view is still alive
            self.data.close()


def _open(path: Path) -> int:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UnsupportedModel(f"{path.name}: a folder; give the .gguf file inside it", path, "file")
        if not stat.S_ISREG(mode):
            raise UnsupportedModel(f"{path.name}: a device or a pipe; give a regular .gguf file", path, "file")
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{path}: no such file; check the path, or see 'edgeinfer list'") from None
    except ValueError:  # a NUL in the path
        raise ModelNotFound(f"{str(path)!r}: not a path") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ModelError:
    return CorruptFile(path, "file", None, f"cannot be read: {error.strerror or error}")


def _unmapped(path: Path, size: int, error: OSError) -> EdgeInferError:
    if error.errno == errno.ENOMEM:
        return MemoryLimit(f"{path.name}: no room to map {size} bytes; raise the memory limit of this process", size, 0)
    return _unreadable(path, error)


def _identity(file: int) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds."""
    status = os.fstat(file)
    return status.st_size, status.st_mtime_ns
