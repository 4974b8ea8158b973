"""A conversation outside the database: what exports hold and imports are turned into, and how one is planted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from edgeinfer.app.conversations import database as db
from edgeinfer.app.conversations.records import ROLES, STATES, Heading, Role, State, Turn
from edgeinfer.app.conversations.store import Conversations

MOST_MESSAGES = 100_000
"""Of one conversation; more is no conversation."""
MOST_TEXT = 16 << 20
"""Characters of one message; the rest is cut, and said to be."""


@dataclass(slots=True)
class Node:
    """A message by whatever key its file gives it."""

    key: str
    parent: str | None
    turn: Turn


@dataclass(slots=True)
class Tree:
    """A conversation and its messages in any order. ``leaf`` is the key of the branch's end that is shown first."""

    heading: Heading = field(default_factory=Heading)
    leaf: str | None = None
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Imported:
    """What came of an import; ``notes`` say what was left out, a line each."""

    conversations: list[int] = field(default_factory=list)
    messages: int = 0
    notes: list[str] = field(default_factory=list)


def taken_out(store: Conversations, conversation: int) -> Tree:
    """A conversation of the store, with keys that count from 1."""
    found, messages = store.conversation(conversation), store.tree(conversation)
    keys = {message.id: str(number) for number, message in enumerate(messages, 1)}
    return Tree(
        found,
        keys.get(found.leaf) if found.leaf is not None else None,
        [Node(keys[one.id], keys[one.parent] if one.parent is not None else None, one) for one in messages],
    )


def plant(store: Conversations, trees: Iterable[Tree]) -> Imported:
    """Writes conversations, each whole or not at all. Messages whose parent is missing begin a branch of their own."""
    imported = Imported()
    for tree in trees:
        if not tree.nodes:
            continue
        ordered, notes = in_order(tree)
        imported.notes.extend(f"{db.one_line(tree.heading.title, 40) or 'untitled'}: {note}" for note in notes)
        imported.conversations.append(_planted(store, tree, ordered))
        imported.messages += len(ordered)
    return imported


def in_order(tree: Tree) -> tuple[list[Node], list[str]]:
    """The nodes in their order, but parents before children, and what was wrong with them."""
    notes = []
    nodes: dict[str, Node] = {}
    for node in tree.nodes[:MOST_MESSAGES]:
        nodes.setdefault(node.key, node)
    if left_out := len(tree.nodes) - len(nodes):
        notes.append(f"{left_out} messages left out: the same key twice, or more than {MOST_MESSAGES:,}")
    orphans = [node for node in nodes.values() if node.parent is not None and node.parent not in nodes]
    for node in orphans:
        node.parent = None
    if orphans:
        notes.append(f"{len(orphans)} messages answer one that is missing; each begins a branch")
    ordered, circles = _parents_first(nodes)
    if circles:
        notes.append(f"{circles} circles of messages that answer each other were cut")
    return ordered, notes


def _parents_first(nodes: dict[str, Node]) -> tuple[list[Node], int]:
    """The nodes, and how many circles of them were cut: a circle's first node becomes a root."""
    below: dict[str | None, list[tuple[int, str]]] = {}
    for place, node in enumerate(nodes.values()):
        below.setdefault(node.parent, []).append((place, node.key))
    strays = iter(nodes.values())
    placed: dict[str, Node] = {}
    waiting = below.get(None, [])  # a heap: they are in order
    circles = 0
    while True:
        if not waiting:  # what is left runs in circles
            stray = next((node for node in strays if node.key not in placed), None)
            if stray is None:
                return list(placed.values()), circles
            stray.parent = None
            circles += 1
            waiting.append((0, stray.key))
        key = heappop(waiting)[1]
        if key not in placed:
            placed[key] = nodes[key]
            for entry in below.get(key, []):
                heappush(waiting, entry)


def _planted(store: Conversations, tree: Tree, ordered: Sequence[Node]) -> int:
    now, about = time.time(), tree.heading
    ids: dict[str, int] = {}
    with store.write():
        home = store.start(about.title, about.model, about.system, about.preset).id
        for node in ordered:
            parent = ids[node.parent] if node.parent is not None else None
            turn = _storable(node.turn, about.created or now)
            ids[node.key] = store.insert("messages", conversation=home, parent=parent, **db.turn_columns(turn))
        leaf = ids.get(tree.leaf) if tree.leaf is not None else None
        first = next((node.turn.text for node in ordered if node.turn.role == "user"), "")
        store.update(
            "conversations",
            home,
            title=db.one_line(about.title or first),
            pinned=int(about.pinned),
            leaf=leaf or max(ids.values()),
            created=about.created or now,
            updated=about.updated or about.created or now,
        )
    return home


def _storable(turn: Turn, created: float) -> Turn:
    """A turn of a file as it is kept here: not endless, not growing, and made at some time."""
    return replace(
        turn,
        text=_cut(turn.text),
        reasoning=_cut(turn.reasoning),
        state="cancelled" if turn.state == "streaming" else turn.state,
        created=turn.created or created,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "\n[cut here: too long to import]"


# What files of others hold is anything: these read a value of the kind that is wanted, or its empty one.


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_time(value: Any) -> float:
    """Seconds since 1970; 0 for what is no time between then and the year 3000."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0.0
    return float(value) if 0 < value < 32_503_680_000 else 0.0


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_role(value: Any) -> Role:
    return next((role for role in ROLES if role == value), "user")


def as_state(value: Any) -> State:
    return next((state for state in STATES if state == value), "sent")
