"""Conversations to files and from them, as the commands and the list of chats do it."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.app.conversations import Conversation, Conversations
from edgeinfer.app.conversations.ours import to_json, to_markdown
from edgeinfer.app.conversations.trees import Imported, taken_out
from edgeinfer.app.render.figures import counted
from edgeinfer.errors import BadRequest, NotSaved

_SUFFIXES = (".md", ".json")
_NOTES = 3  # that are shown of an import


def export(store: Conversations, conversation: int, path: Path) -> list[Path]:
    """Writes ``path.md``, the branch that was looked at last, and ``path.json``, every branch.

    Raises BadRequest where there is such a file already, and NotSaved where it cannot be written.
    """
    check_new(path)
    found = store.conversation(conversation)
    branch = store.path(found.leaf) if found.leaf is not None else []
    texts = {".md": to_markdown(found, branch), ".json": to_json([taken_out(store, conversation)])}
    try:
        for file in _files(path):
            with file.open("x", encoding="utf-8", newline="\n") as opened:
                opened.write(texts[file.suffix])
    except (OSError, ValueError) as error:
        raise NotSaved(f"{path}: {error}") from None
    return _files(path)


def check_new(path: Path) -> None:
    """Raises BadRequest where an export would write over a file, or where there is no folder for it."""
    try:
        for file in _files(path):
            if file.exists():
                raise BadRequest(f"{file} is there already; take another name")
            if not file.parent.is_dir():
                raise BadRequest(f"{file.parent} is no folder")
    except (OSError, ValueError) as error:
        raise BadRequest(f"{str(path)[:80]}: {error}") from None


def file_name(conversation: Conversation) -> str:
    """The title with nothing in it that a file system minds."""
    words = "".join(character if character.isalnum() else " " for character in conversation.title).split()
    return "-".join(words)[:60] or f"conversation-{conversation.id}"


def said_of(imported: Imported) -> str:
    conversations = counted(len(imported.conversations), "conversation")
    count = f"Added {conversations} with {counted(imported.messages, 'message')}."
    rest = len(imported.notes) - _NOTES
    more = [f"… and {rest:,} notes more"] if rest > 0 else []
    return "\n".join([count, *imported.notes[:_NOTES], *more])


def _files(path: Path) -> list[Path]:
    name = path.name.removesuffix(".md").removesuffix(".json")
    return [path.parent / (name + suffix) for suffix in _SUFFIXES]
