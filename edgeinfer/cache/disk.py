"""Sealed pages on disk, so that a conversation goes on another day without computing its prompt again.

A page is a file, verbatim, named by the chain of hashes of all tokens up to its end; a checkpoint is a file with the
rows of a sequence that are not sealed, named by the chain up to its last whole page and by its length. The chain starts
with a fingerprint of weights, tokenizer, format and kernels, so that foreign files are never found. What is missing,
short or damaged is a miss. Files are written by a thread of their own, whole or not at all; the folder keeps to a
budget, and so does what is written in a day, over all processes that share it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from queue import Full, Queue
from typing import Any

import mlx.core as mx
import numpy as np

from edgeinfer.cache.kv import LayerKV
from edgeinfer.cache.layout import Layout
from edgeinfer.cache.sequence import CachedSequence
from edgeinfer.ops.paged import PAGE, SINKS

BUDGET = 8 << 30
"""Bytes that the folder holds at most; what was used longest ago goes first."""
DAILY = 20 << 30
"""Bytes that are written in a day at most: a drive wears out."""
_MAGIC = b"edgeinfer keys and values 1\n"
_DIGEST = 32
_WAITING = 8  # jobs of the writer; more are dropped
_LARGEST_HEAD = 1 << 20
_STALE = 3600.0  # seconds after which an unfinished file is nobody's

Job = list[tuple[str, Callable[[], bytes]]]


@dataclass(frozen=True, slots=True)
class _Chain:
    """Hashes of tokens: ``keys[i]`` of the first ``i * PAGE``."""

    keys: list[str]

    @classmethod
    def of(cls, fingerprint: bytes, tokens: Sequence[int]) -> _Chain:
        ids = np.asarray(tokens, np.int32)
        keys = [blake2b(fingerprint, digest_size=20).hexdigest()]
        for start in range(0, len(ids) - PAGE + 1, PAGE):
            keys.append(
                blake2b(bytes.fromhex(keys[-1]) + ids[start : start + PAGE].tobytes(), digest_size=20).hexdigest()
            )
        return cls(keys)


def _rest(tokens: Sequence[int], length: int) -> str:
    """Of the tokens behind the last whole page."""
    return blake2b(np.asarray(tokens[length // PAGE * PAGE : length], np.int32).tobytes(), digest_size=8).hexdigest()


class DiskStore:
    """Used from the backend's thread; only its writer works on another one.

    ``fingerprint``: of all that changes the bytes. Whatever the disk refuses is left undone, and ``trouble`` says what.
    """

    def __init__(
        self, folder: Path, fingerprint: bytes, layout: Layout, budget: int = BUDGET, daily: int = DAILY
    ) -> None:
        self.folder, self.layout, self.budget, self.daily = folder, layout, budget, daily
        self.trouble = ""
        self._fingerprint = fingerprint
        self._jobs: Queue[Job | None] = Queue(_WAITING)
        self._writer: threading.Thread | None = None
        self._numbers = count()

    def put(self, sequence: CachedSequence) -> None:
        """Writes a sequence that nothing is added to any more, soon; nothing of it where it seals no page yet."""
        if not sequence.blocks:
            return
        tokens = sequence.tokens
        chain = _Chain.of(self._fingerprint, tokens)
        layers = [layer.arrays for layer in sequence.layers if isinstance(layer, LayerKV)]
        if len(layers) < len(sequence.layers):
            return  # a recurrent state is no page
        mx.eval(layers)
        head = {
            "length": len(tokens),
            "starts": {str(window): start for window, start in sequence.starts.items()},
            "arrays": [[[list(array.shape), str(np.asarray(array).dtype)] for array in arrays] for arrays in layers],
        }
        rows = [np.array(array).tobytes() for arrays in layers for array in arrays]
        names = [f"{key}.page" for key in chain.keys[1 + SINKS // PAGE :]]
        pages = [  # read in this thread: on a GPU they are not memory of their own
            (name, block.memory())
            for name, block in zip(names, sequence.blocks, strict=False)
            if not (self.folder / name).exists()
        ]
        job: Job = [(name, memory.tobytes) for name, memory in pages]
        name = f"{chain.keys[-1]}-{len(tokens)}-{_rest(tokens, len(tokens))}.rows"
        job.append((name, lambda: json.dumps(head).encode() + b"\n" + b"".join(rows)))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="edgeinfer-kv-writer", daemon=True)
            self._writer.start()
        with suppress(Full):
            self._jobs.put_nowait(job)

    def find(self, tokens: Sequence[int], longer_than: int) -> CachedSequence | None:
        """A sequence of the longest prefix of ``tokens`` that is stored whole, the last token left out."""
        for length, name, keys in self._candidates(tokens, longer_than):
            found = self._load(name, keys, tokens, length)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Waits for what is being written."""
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()
            self._writer = None

    def _candidates(self, tokens: Sequence[int], longer_than: int) -> Iterator[tuple[int, str, list[str]]]:
        """Checkpoints of prefixes, the longest first, each with the names of its pages."""
        chain = _Chain.of(self._fingerprint, tokens)
        places = {key: index for index, key in enumerate(chain.keys)}
        found = []
        for name in self._names():
            key, _, rest = name.removesuffix(".rows").partition("-")
            length = rest.partition("-")[0]
            if not name.endswith(".rows") or key not in places or not length.isdigit() or len(length) > 9:
                continue
            size = int(length)
            if (
                longer_than < size < len(tokens)
                and size // PAGE == places[key]
                and name == self._rows(key, tokens, size)
            ):
                found.append((size, name))
        for size, name in sorted(found, reverse=True):
            pages = self.layout.pages(size)
            yield size, name, [f"{key}.page" for key in chain.keys[1 + SINKS // PAGE : 1 + SINKS // PAGE + pages]]

    @staticmethod
    def _rows(key: str, tokens: Sequence[int], length: int) -> str:
        return f"{key}-{length}-{_rest(tokens, length)}.rows"

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except OSError:
            return []

    def _load(self, name: str, pages: list[str], tokens: Sequence[int], length: int) -> CachedSequence | None:
        body = self._read(name)
        if body is None:
            return None
        try:
            head, _, rows = body.partition(b"\n")
            layers, starts = _parsed(json.loads(head), rows, self.layout)
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        blocks = []
        for page in pages:
            stored = self._read(page)
            block = self.layout.new_block()
            if stored is None or len(stored) != block.nbytes:
                return None
            block.memory()[:] = np.frombuffer(stored, np.uint8)
            blocks.append(block)
        return CachedSequence([*layers], list(tokens[:length]), self.layout, blocks, starts)

    def _read(self, name: str) -> bytes | None:
        """What a file holds, if it is whole; notes that it was used."""
        path = self.folder / name
        try:
            stored = path.read_bytes()
            os.utime(path)
        except PermissionError:
            pass
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        body = stored[start:]
        if not stored.startswith(_MAGIC) or stored[len(_MAGIC) : start] != _sum(name, body):
            return None
        return body

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                for name, body in job:
                    if not (self.folder / name).exists():
                        self._write(name, body())
                self._keep_to_budget()
            except OSError as error:
                self.trouble = f"{self.folder}: {error.strerror or error}"

    def _write(self, name: str, body: bytes) -> None:
        """All of a file or nothing; nothing either where the day's share is used up."""
        if self._written_today() + len(body) > self.daily:
            self.trouble = f"{self.folder}: the day's {self.daily} bytes are written"
            return
        unfinished = self.folder / f"{name}.{os.getpid()}.{next(self._numbers)}.part"
        try:
            with unfinished.open("wb") as file:
                file.write(_MAGIC + _sum(name, body))
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self.folder / name)
        finally:
            unfinished.unlink(missing_ok=True)
        with self._day().open("a", encoding="ascii") as log:
            log.write(f"{len(body)}\n")

    def _day(self) -> Path:
        return self.folder / time.strftime("written-%Y-%m-%d")

    def _written_today(self) -> int:
        """By every process that shares the folder; a line that was cut counts as far as it goes."""
        try:
            return sum(int(line) for line in self._day().read_text(encoding="ascii").split() if line.isdigit())
        except (OSError, UnicodeDecodeError):
            return 0

    def _keep_to_budget(self) -> None:
        entries = []
        for name in self._names():
            with suppress(OSError):
                stat = (self.folder / name).stat()
                entries.append((stat.st_mtime, stat.st_size, name))
        today, used = self._day().name, sum(size for _, size, _ in entries)
        for modified, size, name in sorted(entries):
            unfinished = name.endswith(".part") and time.time() - modified > _STALE
            old_day = name.startswith("written-") and name != today
            if unfinished or old_day or (used > self.budget and name.endswith((".page", ".rows"))):
                with suppress(OSError):
                    (self.folder / name).unlink()
                used -= size


def _sum(name: str, body: bytes) -> bytes:
    """Over the name too: a file that was renamed is another one."""
    return blake2b(name.encode() + b"\0" + body, digest_size=_DIGEST).digest()


def _parsed(head: Any, rows: bytes, layout: Layout) -> tuple[list[LayerKV], dict[int, int]]:
    """The layers of a checkpoint. Raises ValueError, KeyError or TypeError for what no sequence has."""
    starts = {int(window): int(start) for window, start in head["starts"].items()}
    length = int(head["length"])
    latest = layout.starts(length)
    if starts.keys() != latest.keys() or any(not 0 <= start <= latest[window] for window, start in starts.items()):
        raise ValueError("starts")
    layers, at = [], 0
    for arrays in head["arrays"]:
        made = []
        for shape, dtype in arrays:
            if dtype not in ("float16", "float32") or not all(
                type(size) is int and 0 < size < 1 << 24 for size in shape
            ):
                raise ValueError("arrays")
            array = np.frombuffer(rows, dtype, int(np.prod(shape, dtype=np.int64)), at).reshape(shape)
            at += array.nbytes
            made.append(mx.array(array))
        layers.append(LayerKV(tuple(made)))
    if len(layers) != len(layout.places) or at != len(rows):
        raise ValueError("layers")
    return layers, starts
