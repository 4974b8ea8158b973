"""What the store hands out: frozen rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeAlias

from edgeinfer.types import Finished

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
State: TypeAlias = Literal["sent", "streaming", "done", "cancelled", "error"]

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
STATES: tuple[State, ...] = ("sent", "streaming", "done", "cancelled", "error")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that went with a message: what was sent of it, not where it lies now."""

    name: str
    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What a reply took: tokens, seconds, tokens a second. ``cached`` tokens of the prompt were not computed again."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    kv_bytes: int = 0  # of keys and values, in the end
    tokens_per_step: float = 0.0
    first_token: float = 0.0
    total: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    backend: str = ""
    seed: int = 0
    finish_reason: str = ""
    truncated: bool = False

    @classmethod
    def of(cls, finished: Finished) -> Self:
        usage, timings, drafting = finished.usage, finished.timings, finished.speculation
        return cls(
            prompt=usage.prompt,
            cached=usage.cached,
            completion=usage.completion,
            drafted=usage.drafted,
            accepted=usage.accepted,
            kv_bytes=usage.kv_bytes,
            tokens_per_step=drafting.tokens / drafting.steps if drafting.steps else 0.0,
            first_token=timings.first_token,
            total=timings.total,
            prefill_rate=timings.prefill_rate,
            decode_rate=timings.decode_rate,
            backend=finished.backend,
            seed=finished.seed,
            finish_reason=finished.finish_reason,
            truncated=finished.truncated,
        )

    @classmethod
    def read(cls, row: Any) -> Self:
        """From JSON's object; what is not a field, or of another type, is left out."""
        if not isinstance(row, Mapping):
            return cls()
        values: dict[str, Any] = {}
        for item in fields(cls):
            value = row.get(item.name)
            if type(value).__name__ in _ACCEPTED[str(item.type)]:
                values[item.name] = value
        return cls(**values)


_ACCEPTED = {"int": ("int",), "float": ("int", "float"), "str": ("str",), "bool": ("bool",)}


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said, and how it ended; ``note`` says why."""

    role: Role
    text: str
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()
    state: State = "sent"
    model: str = ""
    stats: Stats | None = None
    note: str = ""
    created: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Turn):
    """A node of a conversation's tree. Siblings are versions of one turn."""

    id: int
    conversation: int
    parent: int | None


@dataclass(frozen=True, slots=True)
class Heading:
    """What is known of a conversation as a whole."""

    title: str = ""
    model: str = ""
    system: str = ""
    preset: str = ""
    pinned: bool = False
    created: float = 0.0
    updated: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation(Heading):
    """A conversation without its messages. ``leaf`` is the end of the branch that was looked at last."""

    id: int
    leaf: int | None = None
    draft: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that a search found. ``snippet`` is one line; ``marks`` are (start, end) of what matched in it."""

    conversation: int
    message: int
    title: str
    role: Role
    snippet: str
    marks: tuple[tuple[int, int], ...]
    created: float
