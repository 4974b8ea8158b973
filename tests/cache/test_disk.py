"""Sequences on disk: what comes back is what was there, bit for bit; all else is a miss and never an error."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache import disk
from tests.cache.test_series import tiny
from tests.tiny import tiny_gguf

CONTEXT = 1536
TOKENS = [random.Random(5).randrange(250) for _ in range(1200)]


@contextmanager
def opened(model: Path, folder: Path, kv: str = "k8v4") -> Iterator[MLXBackend]:
    with closing(MLXBackend.load(model, CONTEXT, 2, kv=kv, kept=folder)) as backend:
        assert backend.disk is not None
        yield backend


def feed(backend: MLXBackend, tokens: list[int]) -> tuple[int, np.ndarray]:
    """How many tokens were found, and the logits of the last one."""
    state = backend.open(tokens)
    found = at = state.length
    logits: Any = None
    while at < len(tokens):
        part = tokens[at : at + 400]
        (logits,) = backend.step([Chunk(state, part)])
        state.accept(len(part))
        at += len(part)
    last = np.array(logits)
    state.close()
    return found, last


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "m.gguf", "gemma3")


def test_another_day_the_logits_are_the_same(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    longer = [*TOKENS, 3, 4, 5]
    with opened(model, folder) as backend:
        assert feed(backend, TOKENS)[0] == 0
        _, expected = feed(backend, longer)
    with opened(model, folder) as backend:
        found, logits = feed(backend, longer)
        assert found == len(TOKENS)
        assert np.array_equal(logits, expected)
    with opened(model, folder) as backend:  # a template renders the end of a prompt anew
        found, logits = feed(backend, [*TOKENS[:-20], 1, 2])
        assert found == len(TOKENS) - 48
    with opened(model, tmp_path / "none") as backend:
        cold, expected = feed(backend, [*TOKENS[:-20], 1, 2])
        assert cold == 0
        assert np.abs(logits - expected).max() < 2e-3


def _flip(path: Path, body: bytearray, _: bytes, random_: random.Random) -> None:
    body[random_.randrange(len(body))] ^= 1 << random_.randrange(8)
    path.write_bytes(body)


DAMAGES: dict[str, Any] = {
    "flip": _flip,
    "cut": lambda path, body, _, random_: path.write_bytes(body[: random_.randrange(len(body))]),
    "empty": lambda path, *_: path.write_bytes(b""),
    "swap": lambda path, _, other, __: path.write_bytes(other),
    "gone": lambda *_: None,
    "folder": lambda path, *_: path.mkdir(),
}


def test_damaged_short_and_foreign_files_are_a_miss(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with opened(model, folder) as backend:
        feed(backend, TOKENS)
    files = sorted(folder.glob("*.page")) + sorted(folder.glob("*.rows"))
    assert len(files) >= 5
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    for damage in DAMAGES:
        kept = {path: path.read_bytes() for path in files}
        for path in files:
            path.unlink()
            DAMAGES[damage](path, bytearray(kept[path]), kept[files[files.index(path) - 1]], random_)
        with opened(model, folder) as backend:
            assert backend.disk is not None
            assert backend.disk.find([*TOKENS, 1], 0) is None, damage
        for path, body in kept.items():
            if path.is_dir():
                path.rmdir()
            path.write_bytes(body)
    for other in ("k4v4", "k8v8"):
        with opened(model, folder, other) as backend:
            assert feed(backend, [*TOKENS, 1])[0] == 0
    again = tiny_gguf(tmp_path / "other.gguf", "llama", context=CONTEXT, seed=9)
    with opened(again, folder) as backend:
        assert feed(backend, [*TOKENS, 1])[0] == 0
    with opened(model, folder) as backend:
        assert feed(backend, [*TOKENS, 1])[0] == len(TOKENS)


def test_a_full_disk_and_a_folder_that_cannot_be_written_only_cost_the_store(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    with opened(model, in_the_way / "kept") as backend:
        assert feed(backend, TOKENS)[0] == 0
        assert backend.disk is not None
        backend.disk.close()
        assert "file" in backend.disk.trouble

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "fsync", full)
    folder = tmp_path / "full"
    with opened(model, folder) as backend:
        feed(backend, TOKENS)
        assert backend.disk is not None
        backend.disk.close()
        assert "space" in backend.disk.trouble
    assert [path.name for path in folder.iterdir()] == []


def test_budgets(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with opened(model, folder) as backend:
        feed(backend, TOKENS)
    whole = sum(path.stat().st_size for path in folder.iterdir())
    with opened(model, folder) as backend:
        assert backend.disk is not None
        backend.disk.budget = whole // 2
        feed(backend, TOKENS[::-1])
    assert sum(path.stat().st_size for path in folder.iterdir()) <= whole // 2
    fresh = tmp_path / "daily"
    with opened(model, fresh) as backend:
        assert backend.disk is not None
        backend.disk.daily = whole // 3
        feed(backend, TOKENS)
        backend.disk.close()
        assert "day" in backend.disk.trouble
    assert sum(path.stat().st_size for path in fresh.iterdir()) <= whole // 3 + 4096


PROGRAM = """
import sys
from pathlib import Path
from tests.cache.test_disk import TOKENS, feed, opened
model, folder, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
with opened(model, folder) as backend:
    print("ready", flush=True)
    for shift in range(first, first + 40):
        feed(backend, [shift, *TOKENS])
"""


def test_two_processes_share_a_store_and_kills_lose_no_more_than_what_was_being_written(
    model: Path, tmp_path: Path
) -> None:
    """20 kills while two processes write; every file that is there is whole."""
    folder = tmp_path / "kept"
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    for round_ in range(10):
        running = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(model), str(folder), str(round_ % 3)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(random_.uniform(0.02, 0.6))
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
    with opened(model, folder) as backend:
        assert backend.disk is not None
        names = [path.name for path in folder.iterdir() if path.suffix in (".page", ".rows")]
        assert names
        assert all(backend.disk._read(name) is not None for name in names)
        for shift in range(3):
            tokens = [shift, *TOKENS]
            found = backend.disk.find(tokens, 0)
            if found is not None:
                assert found.tokens == tokens[: found.length]
