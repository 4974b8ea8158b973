"""Outputs on disk: kept when wanted, private, and started anew when they are damaged."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from edgeinfer.speculation.store import OutputStore

OUTPUT = list(range(50, 70))


def filled(path: Path) -> OutputStore:
    store = OutputStore(path)
    store.add([1, 2, 3, 4], OUTPUT)
    store.save()
    return store


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "outputs"
    store = filled(path)
    again = OutputStore(path)
    assert list(again.snapshot().tokens) == list(store.snapshot().tokens) == [-1, 2, 3, 4, *OUTPUT]
    assert len(again) == 24
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_without_a_path_or_a_change(tmp_path: Path) -> None:
    store = OutputStore()
    store.add([1], OUTPUT)
    store.save()
    path = tmp_path / "outputs"
    store = OutputStore(path)
    store.add([1], [1, 2, 3])
    store.save()
    assert not path.exists()
    assert len(store) == 0


def test_a_damaged_file_starts_a_new_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "outputs"
    filled(path)
    good = path.read_bytes()
    source = random.Random(1)
    damaged = [b"", b"x", good[:-1], good[:-4], good + good, b"\0" * len(good)]
    for _ in range(40):
        place = source.randrange(len(good))
        damaged.append(good[:place] + bytes([good[place] ^ 1 << source.randrange(8)]) + good[place + 1 :])
    for data in damaged:
        caplog.clear()
        path.write_bytes(data)
        store = OutputStore(path)
        assert len(store) == 0
        assert "damaged" in caplog.text
    store.add([1, 2, 3], OUTPUT)
    store.save()
    assert len(OutputStore(path)) == 24


def test_a_folder_that_cannot_be_used_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    filled(tmp_path / "file" / "outputs")
    assert "could not be" in caplog.text
    (tmp_path / "outputs").mkdir()
    assert len(OutputStore(tmp_path / "outputs")) == 0


def test_a_file_larger_than_the_store_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path / "outputs")
    assert len(OutputStore(tmp_path / "outputs", capacity=10)) == 0
    assert "damaged" in caplog.text
