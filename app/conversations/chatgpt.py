"""ChatGPT's data export: ``conversations.json``, a list of trees of messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgeinfer.app.conversations.records import Heading, Role, Turn
from edgeinfer.app.conversations.trees import Node, Tree, as_dict, as_list, as_text, as_time

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system"}
_UNSEEN = {"user_editable_context", "model_editable_context", "app_pairing_content"}
"""Kinds of content that ChatGPT does not show in a conversation either."""

_MOST_HIDDEN = 200


def is_export(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and "mapping" in as_dict(value[0])


def trees(value: list[Any]) -> list[Tree]:
    return [_tree(as_dict(row)) for row in value]


def _tree(row: dict[str, Any]) -> Tree:
    nodes = as_dict(row.get("mapping"))
    kept: dict[str, Node] = {}
    thoughts: dict[str, str] = {}
    for key, value in nodes.items():
        message = as_dict(as_dict(value).get("message"))
        content = as_dict(message.get("content"))
        if content.get("content_type") == "thoughts":
            thoughts[key] = _thoughts(content)
        elif (node := _node(key, message, content)) is not None:
            kept[key] = node
    for key, node in kept.items():
        node.parent, passed = _nearest(key, nodes, kept)
        if node.turn.role == "assistant":
            thought = "\n\n".join(thoughts[one] for one in reversed(passed) if thoughts.get(one))
            node.turn = replace(node.turn, reasoning=thought)
    current = as_text(row.get("current_node"))
    if current not in kept:
        current = _nearest(current, nodes, kept)[0] or ""
    heading = Heading(
        title=as_text(row.get("title")),
        model=as_text(row.get("default_model_slug")),
        pinned=row.get("is_starred") is True or row.get("pinned_time") is not None,
        created=as_time(row.get("create_time")),
        updated=as_time(row.get("update_time")),
    )
    return Tree(heading, current or None, list(kept.values()))


def _node(key: str, message: dict[str, Any], content: dict[str, Any]) -> Node | None:
    """The message, or None for one that ChatGPT does not show."""
    role = _ROLES.get(as_text(as_dict(message.get("author")).get("role")))
    metadata = as_dict(message.get("metadata"))
    hidden = metadata.get("is_visually_hidden_from_conversation") is True
    text = _text(content)
    if role is None or hidden or not text.strip() or content.get("content_type") in _UNSEEN:
        return None
    turn = Turn(
        role,
        text,
        state="done" if role == "assistant" else "sent",
        model=as_text(metadata.get("model_slug")),
        created=as_time(message.get("create_time")),
    )
    return Node(key, None, turn)


def _nearest(key: str, nodes: dict[str, Any], kept: dict[str, Node]) -> tuple[str | None, list[str]]:
    """The nearest message above that is shown, or a missing one, and the keys of those in between."""
    passed: list[str] = []
    above = as_text(as_dict(nodes.get(key)).get("parent"))
    while above in nodes and above not in kept:
        if len(passed) == _MOST_HIDDEN:  # so many in a row, or a circle of them
            return None, []
        passed.append(above)
        above = as_text(as_dict(nodes[above]).get("parent"))
    return above or None, passed


def _text(content: dict[str, Any]) -> str:
    """What a message says, as Markdown; pictures and sounds are named, for the export holds only where they lay."""
    kind, text = content.get("content_type"), as_text(content.get("text"))
    if kind == "code":
        language = as_text(content.get("language"))
        return f"```{'' if language == 'unknown' else language}\n{text}\n```" if text else ""
    if kind == "execution_output":
        return f"```\n{text}\n```" if text else ""
    parts = [_part(part) for part in as_list(content.get("parts"))]
    return "\n\n".join(part for part in parts if part) or text or as_text(content.get("result"))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    row = as_dict(part)
    kind = as_text(row.get("content_type")).removesuffix("_asset_pointer").replace("_", " ")
    return as_text(row.get("text")) or (f"[{kind}]" if kind else "")


def _thoughts(content: dict[str, Any]) -> str:
    rows = [as_dict(thought) for thought in as_list(content.get("thoughts"))]
    return "\n\n".join(text for row in rows if (text := as_text(row.get("content")) or as_text(row.get("summary"))))
