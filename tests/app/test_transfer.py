"""Exports and imports: round trips, the files of other programs, and hostile ones."""

from __future__ import annotations

import json
import random
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.conversations import Attachment, Conversations, Stats
from edgeinfer.app.conversations.imports import import_file, read_file
from edgeinfer.app.conversations.ours import to_json, to_markdown
from edgeinfer.app.conversations.records import Turn
from edgeinfer.app.conversations.trees import Node, Tree, in_order, taken_out
from edgeinfer.errors import BadInput
from tests.app.test_conversations import AWKWARD


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Conversations]:
    with Conversations.open(tmp_path / "chats.db") as opened:
        yield opened


def grown(store: Conversations, rng: random.Random) -> int:
    """A conversation with branches, every kind of text, state and figure."""
    chat = store.start(rng.choice(["", "A title"]), "smollm2", rng.choice(["", "Be\nbrief."]))
    messages: list[int] = []
    for _ in range(40):
        parent = rng.choice([None, *messages[-4:]]) if messages else None
        made = store.add(
            chat.id, parent, rng.choice(["user", "assistant", "system", "tool"]), rng.choice(AWKWARD),
            reasoning=rng.choice(["", "because"]), attachments=rng.choice([(), (Attachment("a.md", "```\n", 3),)]),
            state=rng.choice(["sent", "done", "cancelled", "error"]), model=rng.choice(["", "qwen"]),
            stats=rng.choice([None, Stats(prompt=9, cached=4, decode_rate=7.25, seed=2**64 - 1)]),
            note=rng.choice(["", "stopped"]),
        )  # fmt: skip
        messages.append(made.id)
    store.pin(chat.id, rng.random() < 0.5)
    store.look_at(chat.id, rng.choice(messages))
    return chat.id


def test_json_comes_back_as_it_was(store: Conversations, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    trees = [taken_out(store, grown(store, rng)) for _ in range(5)]
    text = to_json(trees)
    assert all(character == "\n" or character.isprintable() or character in "\u200d" for character in text)
    file = tmp_path / "export.json"
    file.write_text(text, encoding="utf-8", newline="\n")
    imported = import_file(store, file)
    assert not imported.notes
    assert imported.messages == 200
    assert to_json([taken_out(store, chat) for chat in imported.conversations]) == text


def test_markdown_is_read_by_people_and_acts_on_nothing(store: Conversations) -> None:
    chat = store.start(model="smollm2", system="Be brief.\nBe kind.")
    asked = store.add(
        chat.id, None, "user", "# Title\x1b[31m\r\nnext", attachments=[Attachment("b.md", "````\nx\n", 1)]
    )
    reply = store.add(chat.id, asked.id, "assistant", "```py\nprint(1)", reasoning="hm", state="cancelled", model="m")
    other = store.add(chat.id, asked.id, "assistant", "another branch")
    text = to_markdown(store.conversation(chat.id), store.path(reply.id))
    assert other.text not in text
    assert "\x1b" not in text
    assert "\r" not in text
    for part in (
        "> Be brief.\n> Be kind.", "## You\n\n# Title␛[31m\nnext", "**b.md**\n\n`````\n````\nx\n`````",
        "<details><summary>Reasoning</summary>\n\nhm\n\n</details>", "## Assistant (m)", "```py\nprint(1)\n```",
        "*[cancelled]*",
    ):  # fmt: skip
        assert part in text


def chatgpt(nodes: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [{"title": "Trip", "create_time": 1.7e9, "update_time": 1.7e9 + 60, "mapping": nodes, **fields}]


def said(key: str, parent: str | None, role: str, text: object, kind: str = "text", **fields: Any) -> dict[str, Any]:
    content = text if isinstance(text, dict) else {"content_type": kind, "parts": [text]}
    return {
        "id": key,
        "parent": parent,
        "children": [],
        "message": {"id": key, "author": {"role": role}, "content": content, "create_time": 1.7e9, **fields},
    }


EXPORT = chatgpt(
    {
        "root": {"id": "root", "message": None, "parent": None, "children": ["sys"]},
        "sys": said("sys", "root", "system", ""),
        "user": said("user", "sys", "user", "Where to?"),
        "thoughts": said("thoughts", "user", "assistant", {"content_type": "thoughts", "thoughts": [
            {"summary": "S", "content": "Somewhere warm"}, {"summary": "only a summary"}, 7]}),
        "recap": said("recap", "thoughts", "assistant", {"content_type": "reasoning_recap", "content": "Thought"}),
        "answer": said("answer", "recap", "assistant", "Crete", metadata={"model_slug": "gpt-5"}),
        "again": said("again", "user", "assistant", "Norway"),
        "picture": said("picture", "answer", "user", {"content_type": "multimodal_text", "parts": [
            {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "And this?"]}),
        "code": said("code", "picture", "assistant", {"content_type": "code", "language": "python", "text": "1+1"}),
        "ran": said("ran", "code", "tool", {"content_type": "execution_output", "text": "2"}),
        "hidden": said("hidden", "ran", "user", "not shown", metadata={"is_visually_hidden_from_conversation": True}),
        "last": said("last", "hidden", "assistant", "Done"),
    },
    current_node="last",
    default_model_slug="gpt-5",
)  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_chatgpt_export_keeps_its_branches(store: Conversations, tmp_path: Path, packed: bool) -> None:
    file = tmp_path / "export"
    if packed:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("chat.html", "<html>")
            archive.writestr("conversations-000.json", json.dumps(EXPORT))
    else:
        file.write_text(json.dumps(EXPORT))
    imported = import_file(store, file)
    assert not imported.notes
    [chat] = [store.conversation(one) for one in imported.conversations]
    assert (chat.title, chat.model, chat.created, chat.updated) == ("Trip", "gpt-5", 1.7e9, 1.7e9 + 60)
    assert chat.leaf is not None
    branch = store.path(chat.leaf)
    assert [(one.role, one.text) for one in branch] == [
        ("user", "Where to?"), ("assistant", "Crete"), ("user", "[image]\n\nAnd this?"),
        ("assistant", "```python\n1+1\n```"), ("tool", "```\n2\n```"), ("assistant", "Done"),
    ]  # fmt: skip
    assert branch[1].reasoning == "Somewhere warm\n\nonly a summary"
    assert branch[1].model == "gpt-5"
    assert [one.text for one in store.children(branch[0].id)] == ["Crete", "Norway"]
    assert [hit.message for hit in store.search("crete")] == [branch[1].id]


@pytest.mark.parametrize(
    ("nodes", "count", "note"),
    [
        ({"a": said("a", "b", "user", "x"), "b": said("b", "a", "user", "y")}, 2, "circles"),
        ({"a": said("a", "a", "user", "x")}, 1, "circles"),
        ({"a": said("a", "gone", "user", "x")}, 1, "missing"),
        ({"a": said("a", "h", "user", "x"), "h": {"parent": "i"}, "i": {"parent": "h"}}, 1, ""),
        ({"a": said("a", None, "user", "x", create_time=float("nan")), "b": 5, "c": None, "d": {"message": 5}}, 1, ""),
        ({"a": said("a", None, "user", {"parts": 5}), "b": said("b", "a", "user", "x", create_time=1e300)}, 1, ""),
        ({"a": said("a", None, "robot", "z"), "b": said("b", "a", "user", "x", metadata=[])}, 1, ""),
        ({"a": said("a", {}, "user", "x")}, 1, ""),  # type: ignore[arg-type]
    ],
)
def test_hostile_chatgpt_trees_are_mended(
    store: Conversations, tmp_path: Path, nodes: dict[str, Any], count: int, note: str
) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(chatgpt(nodes, current_node=["?"])))
    imported = import_file(store, file)
    assert len(imported.conversations) == 1
    assert imported.messages == count
    assert note in " ".join(imported.notes)
    for message in store.tree(imported.conversations[0]):
        assert store.path(message.id)[-1] == message


def test_the_worst_trees_take_no_longer_than_any() -> None:
    count = 50_000
    chain = [Node(str(n), str(n - 1) if n else None, Turn("user", "x")) for n in range(count)]
    circles = [Node(str(n), str(n ^ 1), Turn("user", "x")) for n in range(count)]
    star = [Node(str(n), "0" if n else "1", Turn("user", "x")) for n in range(count)]
    backwards = list(reversed(chain))
    for nodes in (chain, circles, star, backwards):
        started = time.process_time()
        ordered, _ = in_order(Tree(nodes=nodes))
        assert time.process_time() - started < 10  # 0.2 here; a quadratic one takes minutes
        seen: set[str | None] = {None}
        for node in ordered:
            assert node.parent in seen
            seen.add(node.key)
        assert len(ordered) == count


def llm_database(path: Path) -> None:
    """The tables of llm 0.32, with the columns that its migrations make."""
    with sqlite3.connect(path) as made:
        made.executescript(
            """
            CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
            CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT,
              options_json TEXT, response TEXT, response_json TEXT, conversation_id TEXT, duration_ms INTEGER,
              datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER, token_details TEXT, schema_id TEXT,
              resolved_model TEXT);
            CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT, datetime_utc TEXT, source TEXT);
            CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
            CREATE TABLE parts (id INTEGER PRIMARY KEY, response_id TEXT, direction TEXT, role TEXT, part_type TEXT,
              "order" INTEGER, content TEXT, content_json TEXT);
            INSERT INTO conversations VALUES ('c1', 'Jokes', 'gpt-4o');
            INSERT INTO fragments VALUES (1, 'h', 'def f(): pass', '', 'f.py');
            INSERT INTO prompt_fragments VALUES ('r1', 1, 0);
            INSERT INTO parts VALUES (1, 'r2', 'output', 'assistant', 'reasoning', 0, 'let me think', NULL);
            """
        )
        insert = "INSERT INTO responses(id, model, prompt, system, response, conversation_id, datetime_utc,"
        insert += " input_tokens, output_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        made.executemany(
            insert,
            [
                ("r2", "gpt-4o", "another", None, "Second", "c1", "2025-03-01T10:01:00.5+00:00", 30, 4),
                ("r1", "gpt-4o", "a joke", "Be funny", "First", "c1", "2025-03-01T10:00:00", 12, 3),
                ("r3", "llama", b"\xff", 7, "Alone", None, "yesterday", -1, "many"),
            ],
        )
    made.close()


def test_llm_logs_are_read_in_their_order(store: Conversations, tmp_path: Path) -> None:
    file = tmp_path / "logs.db"
    llm_database(file)
    before = file.read_bytes()
    imported = import_file(store, file)
    assert file.read_bytes() == before
    assert imported.messages == 6
    [jokes] = store.conversations("Jokes")
    assert (jokes.system, jokes.model, jokes.created) == ("Be funny", "gpt-4o", 1740823200.0)
    assert jokes.leaf is not None
    branch = store.path(jokes.leaf)
    assert [one.text for one in branch] == ["a joke", "First", "another", "Second"]
    assert branch[0].attachments == (Attachment("f.py", "def f(): pass"),)
    assert branch[1].stats == Stats(prompt=12, completion=3)
    assert branch[3].reasoning == "let me think"


def test_llm_logs_as_json_give_the_same(store: Conversations, tmp_path: Path) -> None:
    file = tmp_path / "logs.json"
    row = {"id": "r", "model": "m", "prompt": "p", "system": None, "response": "a", "conversation_id": "c",
           "conversation_name": "Named", "datetime_utc": "2025-03-01T10:00:00"}  # fmt: skip
    file.write_text(json.dumps([row | {"datetime_utc": "2025-03-01T11:00:00", "prompt": "later"}, row]))
    imported = import_file(store, file)
    [chat] = [store.conversation(one) for one in imported.conversations]
    assert chat.title == "Named"
    assert [one.text for one in store.tree(chat.id)] == ["p", "a", "later", "a"]


def zip_with(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def view_database(path: Path) -> None:
    with sqlite3.connect(path) as made:
        made.execute("CREATE VIEW responses AS WITH RECURSIVE endless(prompt) AS (SELECT 1 UNION ALL SELECT prompt + 1"
                     " FROM endless) SELECT prompt, prompt AS response FROM endless")  # fmt: skip
    made.close()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.write_bytes(b""), "line 1"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text("[" * 10**6), "nested too deep"),
        (lambda path: path.write_text('[{"mapping": {}, "n": ' + "9" * 5000 + "}]"), "number too long"),
        (lambda path: path.write_text("[1, 2]"), "no conversations"),
        (lambda path: path.write_text("{}"), "no conversations"),
        (lambda path: path.write_text("<html>login</html>"), "line 1"),
        (lambda path: path.write_text('{"format": "edgeinfer-conversations", "version": 9}'), "version 9"),
        (lambda path: path.write_bytes(b"PK\x03\x04 no archive"), "download the export again"),
        (lambda path: zip_with(path, "other.json", b"[]"), "without conversations.json"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000), "backup"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "backup"),
        (view_database, "without the responses"),
    ],
)
def test_what_is_no_export_is_refused_by_name(tmp_path: Path, make: Any, problem: str) -> None:
    file = tmp_path / "export"
    make(file)
    with pytest.raises(BadInput, match=problem) as refused:
        read_file(file)
    assert "export" in str(refused.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.app.conversations.imports.MOST_BYTES", 1 << 20)
    file = tmp_path / "bomb.zip"
    zip_with(file, "conversations.json", b" " * (64 << 20))
    with pytest.raises(BadInput, match="more than 1"):
        read_file(file)
