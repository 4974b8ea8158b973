"""The tree of a conversation: every branch, and how many tokens of its prompt each reply took over from before."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.widgets.option_list import Option

from edgeinfer.app.actions import bindings
from edgeinfer.app.conversations import Message
from edgeinfer.app.render.figures import count, rate
from edgeinfer.app.render.rows import columns, row
from edgeinfer.app.screens.picker import Picker
from edgeinfer.sanitize import sanitize

_WIDE = 60  # cells of a row that has room for words
_MOST_INDENT = 12  # cells; deeper branches keep to the edge
_FENCE = re.compile(r"^\s*(```|~~~).*$", re.MULTILINE)
_SPEAKER = {"user": "You: ", "assistant": "", "system": "System: ", "tool": "Tool: "}


class TreeScreen(Picker):
    """A turn stays below the one before it; only where the conversation branches do the lines move to the right."""

    NAME = "tree"
    SEARCH = "Search this conversation"
    BINDINGS: ClassVar[list[BindingType]] = bindings("tree")

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[int, Message] = {}
        self.branch: set[int] = set()

    def on_mount(self) -> None:
        super().on_mount()
        session = self.chat_app.session
        if session.conversation is not None:
            self.messages = {one.id: one for one in session.store.tree(session.conversation.id)}
        self.branch = {message.id for message in session.path}
        self.refresh_rows()
        if session.leaf is not None:
            self.rows.highlighted = self.rows.get_option_index(str(session.leaf))

    def refresh_rows(self) -> None:
        words = self.query_text.casefold().split()
        found = [
            (message, ("● " if message.id in self.branch else "  ") + lead)
            for message, lead in laid_out(list(self.messages.values()))
            if all(word in message.text.casefold() for word in words)
        ]
        names = [mark + _words(message) for message, mark in found]
        facts = columns([self._facts(message) for message, _ in found], names, self.room)
        options = [self._option(*each) for each in zip(found, facts, strict=True)]
        self.fill(
            options or [Option(Text("Nothing was said yet." if not words else "No such words.", "dim"), disabled=True)]
        )

    def pick(self, chosen: str) -> None:
        session, chat = self.chat_app.session, self.chat_app.chat
        if chat.turns.busy:
            self.say("A reply is being made; stop it before you go to another branch.", trouble=True)
            return
        if session.conversation is not None:
            message = int(chosen)
            leaf = session.leaf if message in self.branch else session.store.tip(message)
            chat.open_conversation(session.conversation.id, leaf)
        self.dismiss()

    def about(self, chosen: str | None) -> str | Text:
        message = self.messages.get(int(chosen)) if chosen else None
        if message is None:
            return ""
        text = " ".join(message.text[:400].split())
        return f"{_reuse(message)}{sanitize(text, single_line=True)}"

    def _facts(self, message: Message) -> list[str]:
        ended = {"cancelled": "stopped", "error": "failed"}.get(message.state, "")
        stats = message.stats
        if stats is None or not stats.prompt:
            return ["", "", ended]
        reused, read = count(stats.cached), count(stats.prompt)
        words = f"reused {reused} of {read}" if self.room >= _WIDE else f"{reused}/{read}"
        return [words, rate(stats.decode_rate) if stats.decode_rate else "", ended]

    def _option(self, found: tuple[Message, str], facts: list[str]) -> Option:
        message, mark = found
        style = "bold" if message.id in self.branch else ""
        return Option(row(_words(message), facts, self.room, mark, style), id=str(message.id))


def _words(message: Message) -> str:
    return _SPEAKER[message.role] + " ".join(_FENCE.sub("", message.text[:300]).split()) or "…"


def laid_out(messages: list[Message]) -> list[tuple[Message, str]]:
    """The messages from top to bottom, each with the lines that lead to it."""
    children: dict[int | None, list[Message]] = {}
    for message in messages:
        children.setdefault(message.parent, []).append(message)
    rows: list[tuple[Message, str]] = []
    waiting = _branches(children.get(None, []), "")
    while waiting:
        message, lead, below = waiting.pop()
        rows.append((message, lead))
        waiting += _branches(children.get(message.id, []), below)
    return rows


def _branches(siblings: list[Message], lead: str) -> list[tuple[Message, str, str]]:
    """The last first: they are taken from the end. Each with its own lead and that of what is below it."""
    if len(siblings) == 1:
        return [(siblings[0], lead, lead)]
    lead = lead[:_MOST_INDENT]
    last = len(siblings) - 1
    return [
        (message, lead + ("└ " if place == last else "├ "), lead + ("  " if place == last else "│ "))
        for place, message in reversed(list(enumerate(siblings)))
    ]


def _reuse(message: Message) -> str:
    stats = message.stats
    if stats is None or not stats.prompt:
        return ""
    return (
        f"Of {stats.prompt:,} tokens of the prompt {stats.cached:,} were reused and"
        f" {stats.prompt - stats.cached:,} computed · "
    )
