"""The store of conversations: any series of changes against a model of it, windows, kills, damage, search."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeinfer.app.conversations import Attachment, Conversations, Stats
from edgeinfer.errors import BadRequest

AWKWARD = [
    "plain", "[/] [bold]", "```py\nno end", "宽的字符 👩‍👩‍👧 e\u0301", "\u202eright to left שלום",
    "\x1b]52;c;aGk=\x07 \x9b31m", "nul\0inside", "a\r\nb\rc", "", " \t ", "100% _under_ \\", "x" * 3000,
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def test_what_was_said_is_there_again(path: Path) -> None:
    stats = Stats(prompt=40, cached=30, completion=2, decode_rate=61.5, backend="mlx (cpu)", seed=2**63)
    with Conversations.open(path) as store:
        assert store.kept
        assert not store.notice
        chat = store.start(model="smollm2-135m", system="Be brief.", preset="brief")
        asked = store.add(chat.id, None, "user", "Hi\nthere", attachments=[Attachment("a.py", "x = 1\n", 5)])
        reply = store.add(chat.id, asked.id, "assistant", "", state="streaming", model="smollm2-135m")
        store.grow(reply.id, "Hel", "hm")
        store.finish(reply.id, "Hello", "hmm", stats=stats)
        store.keep_draft(chat.id, "and th")
    with Conversations.open(path) as store:
        [found] = store.conversations()
        assert (found.title, found.model, found.system, found.preset) == (
            "Hi there", "smollm2-135m", "Be brief.", "brief",
        )  # fmt: skip
        assert (found.draft, found.messages, found.leaf) == ("and th", 2, reply.id)
        said, answered = store.path(reply.id)
        assert (said.text, said.attachments, said.state) == ("Hi\nthere", (Attachment("a.py", "x = 1\n", 5),), "sent")
        assert (answered.text, answered.reasoning, answered.state) == ("Hello", "hmm", "done")
        assert answered.stats == stats


@pytest.mark.parametrize("text", AWKWARD)
def test_any_text_is_kept_to_the_byte(path: Path, text: str) -> None:
    with Conversations.open(path) as store:
        chat = store.start()
        asked = store.add(chat.id, None, "user", text)
        reply = store.add(chat.id, asked.id, "assistant", "", state="streaming")
        store.finish(reply.id, text, text)
        store.keep_draft(chat.id, text)
    with Conversations.open(path) as store:
        assert [message.text for message in store.tree(chat.id)] == [text, text]
        assert store.message(reply.id).reasoning == text
        assert store.conversation(chat.id).draft == text


def test_half_a_character_becomes_a_replacement_and_a_pair_one_character(path: Path) -> None:
    with Conversations.open(path) as store:
        chat = store.start("\ud800")
        assert store.add(chat.id, None, "user", "a\ud83d\ude00b\udc00").text == "a😀b\ufffd"
        assert store.conversation(chat.id).title == "\ufffd"


class Twin:
    """What the store should hold, in plain lists."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.texts: dict[int, str] = {}
        self.homes: dict[int, int] = {}
        self.chats: dict[int, bool] = {}  # whether it is deleted

    def path(self, message: int) -> list[int]:
        found: list[int] = []
        at: int | None = message
        while at is not None:
            found.insert(0, at)
            at = self.parents[at]
        return found

    def children(self, message: int | None, chat: int) -> list[int]:
        return [one for one, parent in self.parents.items() if parent == message and self.homes[one] == chat]

    def tip(self, message: int) -> int:
        below = [message]
        for one in below:
            below.extend(self.children(one, self.homes[one]))
        return max(below)


def test_any_series_of_changes_gives_the_tree_of_its_twin(path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    windows = [Conversations.open(path), Conversations.open(path)]
    twin = Twin()
    for _ in range(400):
        store = rng.choice(windows)
        live = [chat for chat, deleted in twin.chats.items() if not deleted]
        action = rng.choice(["start", "add", "add", "add", "add", "edit", "finish", "delete", "restore", "reopen"])
        if action == "start" or not live:
            twin.chats[store.start().id] = False
        elif action in ("add", "edit"):
            chat = rng.choice(live)
            own = [message for message, home in twin.homes.items() if home == chat]
            parent = rng.choice([None, *own[-3:]]) if action == "add" or not own else twin.parents[rng.choice(own)]
            text = rng.choice(AWKWARD) + f" word{rng.randrange(50)}"
            state = rng.choice(["sent", "streaming"])
            made = store.add(chat, parent, rng.choice(["user", "assistant"]), text, state=state)
            twin.parents[made.id], twin.texts[made.id], twin.homes[made.id] = parent, text, chat
        elif action == "finish" and twin.texts:
            message = rng.choice(list(twin.texts))
            twin.texts[message] = rng.choice(AWKWARD) + f" word{rng.randrange(50)}"
            store.finish(message, twin.texts[message], state=rng.choice(["done", "cancelled", "error"]))
        elif action in ("delete", "restore"):
            chat = rng.choice(list(twin.chats))
            getattr(store, action)(chat)
            twin.chats[chat] = action == "delete"
        elif action == "reopen":
            windows.remove(store)
            store.close()
            windows.append(Conversations.open(path))
    for store in windows:
        assert {chat.id for chat in store.conversations()} == {
            chat for chat, deleted in twin.chats.items() if not deleted and chat in twin.homes.values()
        }
        for message, text in twin.texts.items():
            assert store.message(message).text == text
            assert [one.id for one in store.path(message)] == twin.path(message)
            assert [one.id for one in store.children(message)] == twin.children(message, twin.homes[message])
            assert store.tip(message) == twin.tip(message)
        for chat in twin.chats:
            assert [one.id for one in store.roots(chat)] == twin.children(None, chat)
        store.close()
    check = sqlite3.connect(path)
    check.execute("INSERT INTO words(words, rank) VALUES ('integrity-check', 1)")
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    check.close()


def test_a_message_answers_only_one_of_its_own_conversation(path: Path) -> None:
    with Conversations.open(path) as store:
        one, other = store.start(), store.start()
        message = store.add(one.id, None, "user", "hi")
        with pytest.raises(BadRequest, match="holds no message"):
            store.add(other.id, message.id, "assistant", "hello")
        with pytest.raises(BadRequest, match="holds no message"):
            store.add(99, None, "user", "hello")
        with pytest.raises(BadRequest, match="role"):
            store.add(one.id, None, "robot", "hello")  # type: ignore[arg-type]
        assert store.path(99) == []
        for call in (store.message, store.tip, store.children, store.siblings):
            with pytest.raises(BadRequest, match="no message 99"):
                call(99)
        assert store.tree(one.id) == [message]


def test_another_windows_writes_are_noticed_and_wait_for_ours(path: Path) -> None:
    with Conversations.open(path) as here, Conversations.open(path) as there:
        here.changed()
        assert not here.changed()
        chat = here.start()
        assert not here.changed()
        there.add(chat.id, None, "user", "from the other window")
        assert here.changed()
        assert not here.changed()
        with there.write() as run:
            run("UPDATE conversations SET title = 'held'")
            blocked = subprocess.Popen([sys.executable, "-c", _RENAME, str(path), str(chat.id)])
            time.sleep(1.0)
            assert blocked.poll() is None
        assert blocked.wait(10) == 0
        assert here.conversation(chat.id).title == "waited"


_RENAME = """
import sys
from pathlib import Path
from edgeinfer.app.conversations import Conversations
with Conversations.open(Path(sys.argv[1])) as store:
    store.rename(int(sys.argv[2]), "waited")
"""


def test_rename_pin_delete_and_undo(path: Path) -> None:
    with Conversations.open(path) as store:
        first, second = store.start(), store.start()
        for chat in (first, second):
            store.add(chat.id, None, "user", f"needle {chat.id}")
        store.pin(first.id)
        store.rename(second.id, "  A new\n name ")
        assert [chat.id for chat in store.conversations()] == [first.id, second.id]
        assert [chat.title for chat in store.conversations("NEW name")] == ["A new name"]
        store.delete(second.id)
        assert [hit.conversation for hit in store.search("needle")] == [first.id]
        assert not store.conversations("name")
        with pytest.raises(BadRequest):
            store.conversation(second.id)
        store.restore(second.id)
        assert {hit.conversation for hit in store.search("needle")} == {first.id, second.id}
        store.delete(second.id)
        with store.write() as run:
            run("UPDATE conversations SET deleted = ?", (time.time() - 8 * 24 * 3600,))
    with Conversations.open(path) as store, pytest.raises(BadRequest):
        store.message(store.tip(2))


def test_a_draft_of_a_window_that_died_is_found(path: Path) -> None:
    with Conversations.open(path) as store:
        chat = store.start()
        store.keep_draft(chat.id, "half a thou")
        assert store.unsent() is None  # this window still writes it
        with store.write() as run:
            run("UPDATE conversations SET owner = '1:0.00'")
        found = store.unsent()
        assert found is not None
        assert found.draft == "half a thou"
        store.keep_draft(chat.id, "")
        assert store.unsent() is None
        assert store.conversations() == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("NEEDLE", ["a needle in", "needles"]), ("needle in", ["a needle in"]), ("字符", ["宽的字符串"]),
        ("的", ["宽的字符串"]), ("100%", ["at 100% _x_"]), ("_x_", ["at 100% _x_"]),
        ('"quoted"', ['"quoted" OR *']), ("OR *", ['"quoted" OR *']),
        ("nothing such", []), ("  ", []), ("\0", []), ("a\0b", []), ("straße", ["Straße"]),
    ],
)  # fmt: skip
def test_search_finds_every_word_anywhere(path: Path, query: str, expected: list[str]) -> None:
    with Conversations.open(path) as store:
        chat = store.start()
        for text in ("a needle in", "needles", "宽的字符串", "at 100% _x_", '"quoted" OR *', "Straße"):
            store.add(chat.id, None, "user", text)
        store.add(chat.id, None, "assistant", "needle 的", state="streaming")
        hits = store.search(query)
        assert sorted(hit.snippet for hit in hits) == sorted(expected)
        for hit in hits:
            assert hit.marks
            assert all(0 <= start < end <= len(hit.snippet) for start, end in hit.marks)


def test_search_over_10000_messages(path: Path) -> None:
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    with Conversations.open(path) as store:
        with store.write():
            for _ in range(100):
                chat, parent = store.start(), None
                for _ in range(100):
                    parent = store.add(chat.id, parent, "user", " ".join(rng.choices(words, k=60))).id
        slowest = 0.0
        for query in (words[0], words[1][:3], f"{words[2]} {words[3]}", "a", "qz x", "zzzzzzz", "the"):
            started = time.perf_counter()
            store.search(query)
            slowest = max(slowest, time.perf_counter() - started)
    print(f"the slowest of 7 searches over 10,000 messages: {1000 * slowest:.1f} ms")
    assert slowest < 1.0  # the goal is 0.1; a busy machine is no failure
