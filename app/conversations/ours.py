"""Our own export: every message of a conversation as JSON, which can be imported again, and a branch as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from edgeinfer.app.conversations.records import Attachment, Conversation, Heading, Message, Stats, Turn
from edgeinfer.app.conversations.trees import (
    Node,
    Tree,
    as_dict,
    as_list,
    as_role,
    as_state,
    as_text,
    as_time,
)
from edgeinfer.errors import BadInput
from edgeinfer.sanitize import sanitize

FORMAT = "edgeinfer-conversations"
_VERSION = 1
_UNSHOWN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
_NAMES = {"user": "You", "assistant": "Assistant", "system": "System", "tool": "Tool"}


def to_json(trees: Sequence[Tree]) -> str:
    """The text of a file with every message and branch. Characters that a terminal may act on are escaped."""
    rows = [
        {**_of(Heading, tree.heading), "leaf": tree.leaf, "messages": [_row(node) for node in tree.nodes]}
        for tree in trees
    ]
    text = json.dumps({"format": FORMAT, "version": _VERSION, "conversations": rows}, ensure_ascii=False, indent=1)
    return _UNSHOWN.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def from_json(value: dict[str, Any], name: str) -> list[Tree]:
    """Raises BadInput for a version that is not known."""
    if value.get("version") != _VERSION:
        raise BadInput(
            f"{name}: version {value.get('version')!r:.20} of {FORMAT}; this edgeinfer reads {_VERSION}; update it"
        )
    return [_tree(as_dict(row)) for row in as_list(value.get("conversations"))]


def to_markdown(conversation: Conversation, branch: Sequence[Message]) -> str:
    """One branch, for people. Reasoning is folded; nothing in it can act on a terminal."""
    parts = [f"# {_line(conversation.title) or 'Untitled'}"]
    if conversation.model:
        parts.append(f"*{_line(conversation.model)}, {_date(conversation.updated)}*")
    if conversation.system:
        parts.append("> " + _block(conversation.system).replace("\n", "\n> "))
    for message in branch:
        model = f" ({_line(message.model)})" if message.role == "assistant" and message.model else ""
        parts.append(f"## {_NAMES[message.role]}{model}")
        if message.reasoning:
            thought = _block(message.reasoning)
            parts.append(f"<details><summary>Reasoning</summary>\n\n{thought}\n\n</details>")
        parts.append(_block(message.text))
        parts.extend(_attached(attachment) for attachment in message.attachments)
        if message.note or message.state in ("cancelled", "error"):
            parts.append(f"*[{_line(message.note) or message.state}]*")
    return "\n\n".join(part for part in parts if part) + "\n"


def _attached(attachment: Attachment) -> str:
    text = _text(attachment.text)
    longest = max((len(match[1]) for match in _FENCE.finditer(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"**{_line(attachment.name)}**\n\n{fence}\n{text.rstrip(chr(10))}\n{fence}"


def _block(text: str) -> str:
    """A message's Markdown; a fence that it leaves open is closed, so that the next message is not code."""
    text = _text(text).strip("\n")
    fence = ""
    for match in _FENCE.finditer(text):
        if not fence:
            fence = match[1]
        elif match[1].startswith(fence):
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _text(text: str) -> str:
    return sanitize(text.replace("\r\n", "\n").replace("\r", "\n"))


def _line(text: str) -> str:
    return sanitize(text, single_line=True)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%d %B %Y")


def _row(node: Node) -> dict[str, Any]:
    """The node without what is empty."""
    turn = {key: value for key, value in _of(Turn, node.turn).items() if value or key in ("role", "text")}
    return {"key": node.key, "parent": node.parent, **turn}


def _of(kind: type[Heading] | type[Turn], value: Heading | Turn) -> dict[str, Any]:
    """The fields of ``kind``, of which ``value`` may have more."""
    values = asdict(value)
    return {item.name: values[item.name] for item in fields(kind)}


def _tree(row: dict[str, Any]) -> Tree:
    heading = Heading(
        title=as_text(row.get("title")),
        model=as_text(row.get("model")),
        system=as_text(row.get("system")),
        preset=as_text(row.get("preset")),
        pinned=row.get("pinned") is True,
        created=as_time(row.get("created")),
        updated=as_time(row.get("updated")),
    )
    nodes = [_node(as_dict(message)) for message in as_list(row.get("messages"))]
    return Tree(heading, as_text(row.get("leaf")) or None, nodes)


def _node(row: dict[str, Any]) -> Node:
    turn = Turn(
        role=as_role(row.get("role")),
        text=as_text(row.get("text")),
        reasoning=as_text(row.get("reasoning")),
        attachments=tuple(_attachment(as_dict(one)) for one in as_list(row.get("attachments"))),
        state=as_state(row.get("state")),
        model=as_text(row.get("model")),
        stats=Stats.read(row["stats"]) if row.get("stats") else None,
        note=as_text(row.get("note")),
        created=as_time(row.get("created")),
    )
    return Node(as_text(row.get("key")), as_text(row.get("parent")) or None, turn)


def _attachment(row: dict[str, Any]) -> Attachment:
    tokens = row.get("tokens")
    count = tokens if type(tokens) is int and tokens >= 0 else 0
    return Attachment(as_text(row.get("name")), as_text(row.get("text")), count)
