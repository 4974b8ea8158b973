"""Earlier outputs of a model, for the texts that repeat them: in memory, and on disk where the user asked for that."""

from __future__ import annotations

import logging
import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.speculation.matches import BORDER, Found

CAPACITY = 262_144
"""Tokens kept; the oldest half goes when there are more."""
_LEAST = 8  # tokens of an output that is worth keeping
_LEAD = 3  # tokens of the prompt kept before an output, so that its beginning can be found
_RECENT = 12
_MAGIC = b"edgeinfer outputs 1\n"
_FACTOR = 0x2545F4914F6CDD1D
_WORD = 2**64 - 1
_FILTER_BITS = 20
_log = logging.getLogger(__name__)


class Snapshot:
    """The store at one time, as a corpus: triples of tokens in a sorted table, behind a filter."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        self._array = tokens
        self.tokens: Sequence[int] = array("i", tokens.tobytes())
        wide = tokens.astype(np.uint64)  # a border becomes a number that no token is
        hashes = _hashed(wide[:-2], wide[1:-1], wide[2:]) if len(tokens) > 2 else np.empty(0, np.uint64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        self.order = array("i", order.tobytes())
        self.hashes = array("Q", hashes[order].tobytes())
        seen = np.zeros(1 << _FILTER_BITS, np.uint8)
        seen[hashes >> np.uint64(64 - _FILTER_BITS)] = 1
        self.seen = seen.tobytes()

    @property
    def array(self) -> NDArray[np.int32]:
        return self._array

    def places(self, tail: Sequence[int]) -> Found:
        if len(tail) < 3:
            return ()
        wanted = _hashed(*tail) & _WORD
        if not self.seen[wanted >> (64 - _FILTER_BITS)]:
            return ()
        stop = bisect_right(self.hashes, wanted)
        start = max(bisect_left(self.hashes, wanted), stop - _RECENT)
        wanted_tokens = array("i", tail)
        found = [place + 3 for place in self.order[start:stop] if self.tokens[place : place + 3] == wanted_tokens]
        return ((found, 3),) if found else ()


class OutputStore:
    """Outputs in the order in which they came. ``path`` set: read from there, and written by ``save``."""

    def __init__(self, path: Path | None = None, capacity: int = CAPACITY) -> None:
        self._path, self._capacity = path, capacity
        self._new: list[int] = []
        self._changed = False
        self._snapshot = Snapshot(_read(path, capacity) if path else np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self._snapshot.tokens) + len(self._new)

    def add(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Keeps an output, with the last tokens of its prompt before it."""
        if len(output) >= _LEAST:
            self._new += [BORDER, *prompt[-_LEAD:], *output]
            self._changed = True

    def snapshot(self) -> Snapshot:
        """What is kept by now; it stays as it is while more is added."""
        if self._new:
            tokens = np.concatenate([self._snapshot.array, np.asarray(self._new, np.int32)])
            if len(tokens) > self._capacity:
                tokens = tokens[-self._capacity // 2 :]
            self._snapshot, self._new = Snapshot(tokens), []
        return self._snapshot

    def save(self) -> None:
        """Writes the file anew, if there is one and anything came."""
        if self._path is None or not self._changed:
            return
        body = self.snapshot().array.astype("<i4").tobytes()
        data = _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body
        try:
            replace_file(self._path, data)
            self._changed = False
        except OSError as error:
            _log.warning("%s could not be written: %s", self._path, error)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file that only its user reads, all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
    part.replace(path)


def _read(path: Path, capacity: int) -> NDArray[np.int32]:
    """The tokens of a file; none where it is missing or is not what was written."""
    limit = len(_MAGIC) + 4 + 4 * capacity
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return np.empty(0, np.int32)
    except OSError as error:
        _log.warning("%s could not be read: %s", path, error)
        return np.empty(0, np.int32)
    body = data[len(_MAGIC) + 4 :]
    check = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 4], "little")
    if not data.startswith(_MAGIC) or len(data) > limit or len(body) % 4 or zlib.crc32(body) != check:
        _log.warning("%s is damaged: starting a new store of outputs", path)
        return np.empty(0, np.int32)
    return np.frombuffer(body, "<i4").astype(np.int32)


def _hashed(a: Any, b: Any, c: Any) -> Any:
    """Three tokens in one number, of which ``_WORD`` counts; different triples may share one."""
    return (a * _FACTOR + b) * _FACTOR + c
