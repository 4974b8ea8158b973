"""The database file: kills, damage, newer versions, other programs' files, full and locked disks."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeinfer.app.conversations import Conversations


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


_CHATTER = """
import sys, time
from pathlib import Path
from edgeinfer.app.conversations import Conversations
store = Conversations.open(Path(sys.argv[1]))
chat = store.start()
parent = None
for turn in range(10**6):
    asked = store.add(chat.id, parent, "user", f"question {turn}")
    print("sent", asked.id, flush=True)
    reply = store.add(chat.id, asked.id, "assistant", "", state="streaming")
    for word in range(5):
        store.grow(reply.id, "word " * (word + 1))
        print("grown", reply.id, word + 1, flush=True)
    parent = store.finish(reply.id, "word " * 6).id
    print("done", reply.id, flush=True)
"""


def test_20_kills_lose_nothing_that_was_sent(path: Path) -> None:
    """Each process is killed at a random moment; the next window finds all that it had said."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    sent: set[int] = set()
    grown: dict[int, int] = {}
    done: set[int] = set()
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", _CHATTER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        for line in [first, *process.stdout]:
            if not line.endswith("\n"):
                continue
            word, message, *count = line.split()
            if word == "sent":
                sent.add(int(message))
            elif word == "grown":
                grown[int(message)] = int(count[0])
            else:
                done.add(int(message))
        process.stdout.close()
        process.wait()
        with Conversations.open(path) as store:
            assert not store.notice
            assert not store.rows("SELECT id FROM messages WHERE state = 'streaming'")
            for message in sent:
                assert store.message(message).text.startswith("question")
            for message, count in grown.items():
                found = store.message(message)
                assert found.text.count("word") >= count
                assert found.state == "done" or found.note == "edgeinfer ended before the reply did"
            assert all(store.message(message).state == "done" for message in done)
            assert store.rows("PRAGMA integrity_check") == [("ok",)]
    assert len(sent) >= 20


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    with Conversations.open(path) as store:
        store.add(store.start().id, None, "user", "kept")
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 7")
    newer.close()
    before = path.read_bytes()
    with Conversations.open(path) as store:
        assert "written by a newer edgeinfer (format 7; this one knows 1); update edgeinfer" in store.notice
        assert not store.kept
        assert store.conversations() == []
        store.add(store.start().id, None, "user", "works all the same")
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE conversations (id)")
    other.close()
    before = path.read_bytes()
    with Conversations.open(path) as store:
        assert "a database of another program" in store.notice
        assert not store.kept
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "short", "zeros", "page", "header"])
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(path: Path, damage: str) -> None:
    with Conversations.open(path) as store:
        chat, parent = store.start(), None
        with store.write():
            for turn in range(200):
                parent = store.add(chat.id, parent, "user", f"turn {turn} " * 20).id
    sound = path.read_bytes()
    damaged = {
        "garbage": random.Random(1).randbytes(len(sound)),
        "short": sound[: len(sound) // 2],
        "zeros": bytes(len(sound)),
        "page": sound[: 5 * 4096] + random.Random(1).randbytes(20 * 4096) + sound[25 * 4096 :],
        "header": sound[:16] + b"\xff" * 80 + sound[96:],
    }[damage]
    path.write_bytes(damaged)
    with Conversations.open(path) as store:
        assert "is damaged" in store.notice
        assert "and a new one begun" in store.notice
        assert store.kept
        store.add(store.start().id, None, "user", "goes on")
    [aside] = [file for file in path.parent.glob("*.bad-*.db")]
    assert aside.name in store.notice
    assert aside.read_bytes() == damaged
    with Conversations.open(path) as store:
        assert not store.notice
        assert [chat.title for chat in store.conversations()] == ["goes on"]


def test_a_file_that_cannot_be_written_is_read(path: Path) -> None:
    with Conversations.open(path) as store:
        store.add(store.start().id, None, "user", "from before")
    assert path.stat().st_mode & 0o077 == 0
    blocked = path.parent / "file"
    blocked.write_text("")
    with Conversations.open(blocked / "chats.db") as store:
        assert "nothing new is kept" in store.notice
        assert not store.kept
        assert store.conversations() == []
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    with Conversations.open(path) as store:
        assert "locked" in store.notice
        assert not store.kept
        store.add(store.start().id, None, "user", "still works")
    assert time.monotonic() - started < 30
    holder.close()


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_full_disk_is_said_and_nothing_is_half_written(path: Path) -> None:
    """A limit on the size of files stands for the disk: SQLite gets the same kind of error from its writes."""
    done = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Conversations.open(path) as store:
        assert not store.notice
        [chat] = store.conversations()
        assert [message.text for message in store.tree(chat.id)] == ["before", "after"]


_FULL = """
import resource, signal, sys
from pathlib import Path
from edgeinfer.app.conversations import Conversations
from edgeinfer.errors import NotSaved
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Conversations.open(Path(sys.argv[1]))
chat = store.start()
first = store.add(chat.id, None, "user", "before")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    store.add(chat.id, first.id, "user", "x" * 1_000_000)
except NotSaved as error:
    assert "could not be saved" in str(error), error
else:
    sys.exit("a full disk took it")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(chat.id, first.id, "user", "after")
"""
