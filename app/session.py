"""A conversation while it goes on: what was said is stored before it is answered, a reply while it is made.

It knows nothing of screens; the chat screen and the plain mode both drive it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from edgeinfer.app.conversations import Attachment, Conversation, Conversations, Message, State, Stats
from edgeinfer.app.engine import Engine, in_thread
from edgeinfer.errors import EdgeInferError
from edgeinfer.types import Event, Finished, ReasoningDelta, TextDelta

ANSWER_TOKENS = 2048
"""Tokens of a reply at most, where nothing else is set."""
SAVE_SECONDS = 1.0
"""Between two times that a growing reply is written to disk."""

_STATES: dict[str, State] = {"stop": "done", "length": "done", "cancelled": "cancelled", "error": "error"}
"""By the reason that a reply finished."""


class Session:
    """The branch of a conversation that is looked at, and the model that answers."""

    def __init__(self, store: Conversations, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self.conversation: Conversation | None = None
        self.path: list[Message] = []
        self.params: dict[str, Any] = {"max_tokens": ANSWER_TOKENS}  # options of ``LLM.stream``
        self.system = ""  # the system prompt that new conversations begin with

    @property
    def leaf(self) -> int | None:
        """The last message of the branch."""
        return self.path[-1].id if self.path else None

    @property
    def answer_tokens(self) -> int:
        """Tokens of a reply at most."""
        return int(self.params["max_tokens"])

    def begin(self) -> None:
        """A new conversation, kept once there is something in it."""
        self.conversation, self.path = None, []

    def open(self, conversation: int, leaf: int | None = None) -> None:
        """Goes on with a conversation, at the branch that was looked at last or at ``leaf``."""
        self.conversation = self.store.conversation(conversation)
        leaf = self.conversation.leaf if leaf is None else leaf
        self.path = self.store.path(leaf) if leaf is not None else []
        if leaf != self.conversation.leaf:
            self.store.look_at(conversation, leaf)

    def kept(self) -> Conversation:
        """The conversation, begun now if it was not."""
        if self.conversation is None:
            llm = self.engine.llm
            self.conversation = self.store.start(model=llm.name if llm else "", system=self.system)
        return self.conversation

    def say(self, text: str, attachments: Sequence[Attachment] = ()) -> Message:
        """Stores a message of the user at the end of the branch."""
        said = self.store.add(self.kept().id, self.leaf, "user", text, attachments=tuple(attachments))
        self.path.append(said)
        return said

    def back_to(self, message: int) -> Message | None:
        """Leaves ``message`` and what follows it to a branch of its own; the next message becomes its sibling."""
        place = next(index for index, found in enumerate(self.path) if found.id == message)
        left = self.path[place]
        del self.path[place:]
        if self.conversation is not None and self.leaf is not None:
            self.store.look_at(self.conversation.id, self.leaf)
        return left

    def draft(self, text: str) -> None:
        """Keeps what is being written; a conversation begins with it where there is none."""
        if text or self.conversation is not None:
            self.store.keep_draft(self.kept().id, text)
            self.conversation = self.store.conversation(self.kept().id)

    def places(self) -> dict[int, str]:
        """Which version of how many, "2/3", for each message of the branch that has siblings."""
        if self.conversation is None or not self.path:
            return {}
        siblings: dict[int | None, list[int]] = {}
        for message in self.store.tree(self.conversation.id):
            siblings.setdefault(message.parent, []).append(message.id)
        return {
            message.id: f"{versions.index(message.id) + 1}/{len(versions)}"
            for message in self.path
            if len(versions := siblings.get(message.parent, [])) > 1
        }

    def versions(self, message: int) -> list[int]:
        """The siblings of a message, itself among them, oldest first."""
        return [found.id for found in self.store.siblings(message)]

    def switch(self, message: int, step: int) -> bool:
        """Shows the branch of a sibling, ``step`` places on. False where there is no other."""
        versions = self.versions(message)
        if len(versions) < 2:
            return False
        other = versions[(versions.index(message) + step) % len(versions)]
        self.open(self.kept().id, self.store.tip(other))
        return True

    def messages(self) -> list[dict[str, str]]:
        """The branch as the library takes it."""
        system = self.conversation.system if self.conversation else self.system
        told = [{"role": "system", "content": system}] if system else []
        return told + [{"role": message.role, "content": content(message)} for message in self.path]

    async def answer(self, **options: Any) -> AsyncGenerator[Event]:
        """The events of the answer to the branch, which grows by it; stored as it comes, however it ends.

        Raises what the library raises; what there was of the reply until then is kept.
        """
        llm, prompt = self.engine.llm, self.messages()
        writer: _Writer | None = None
        state: State = "cancelled"
        stats, note = None, ""
        try:
            async for event in self.engine.reply(prompt, **{**self.params, **options}):
                if writer is None:
                    added = self.store.add(
                        self.kept().id, self.leaf, "assistant", "", state="streaming", model=llm.name if llm else ""
                    )
                    self.path.append(added)
                    writer = _Writer(self.store, added.id)
                match event:
                    case TextDelta(text):
                        writer.text += text
                    case ReasoningDelta(text):
                        writer.reasoning += text
                    case Finished(finish_reason=reason):
                        state, stats = _STATES[reason], Stats.of(event)
                await writer.save()
                if isinstance(event, Finished) and state != "error":
                    self.path[-1], writer = writer.finish(state, stats), None
                yield event
        except EdgeInferError as error:
            state, note = "error", str(error)
            raise
        finally:
            if writer is not None:
                self.path[-1] = writer.finish(state, stats, note)


class _Writer:
    """A reply on its way to the disk."""

    def __init__(self, store: Conversations, message: int) -> None:
        self.text = self.reasoning = ""
        self._store, self._message = store, message
        self._saved = time.monotonic()

    async def save(self) -> None:
        """Writes what there is, if that is due."""
        if time.monotonic() - self._saved < SAVE_SECONDS:
            return
        self._saved = time.monotonic()
        text, reasoning = self.text, self.reasoning
        await in_thread(lambda: self._store.grow(self._message, text, reasoning))

    def finish(self, state: State, stats: Stats | None, note: str = "") -> Message:
        return self._store.finish(self._message, self.text, self.reasoning, state, stats, note)


def content(message: Message) -> str:
    """What the model reads of a message: its text, and each attached file under its name."""
    parts = [message.text, *(_file(attachment) for attachment in message.attachments)]
    return "\n\n".join(part for part in parts if part)


def _file(attachment: Attachment) -> str:
    """A file between fences that are longer than any inside it."""
    longest = max((len(run) for run in _fences(attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{attachment.name}:\n{fence}\n{attachment.text.removesuffix(chr(10))}\n{fence}"


def _fences(text: str) -> list[str]:
    return [line[: len(line) - len(line.lstrip("`"))] for line in map(str.lstrip, text.split("\n"))]
