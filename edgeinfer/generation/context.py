"""Making a prompt fit: refused with the numbers, or cut by a policy that was asked for, never silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar, get_args

from edgeinfer.errors import BadRequest, ContextLimit
from edgeinfer.types import Message

Overflow: TypeAlias = Literal["refuse", "drop-oldest"]
"""What to do with a prompt that is too long: raise ContextLimit, or drop its oldest tokens or messages."""


class Encoded(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...


AnyEncoded = TypeVar("AnyEncoded", bound=Encoded)


def checked_overflow(value: object) -> Overflow:
    for policy in get_args(Overflow):
        if value == policy:
            return policy  # type: ignore[no-any-return]
    raise BadRequest(f"overflow={value!r}: expected one of {', '.join(get_args(Overflow))}", "overflow")


def room_for_prompt(context: int, max_tokens: int) -> int:
    """Tokens that a cut prompt may take: what the answer leaves, and at least half of the context."""
    return context - min(max_tokens, context // 2)


def fit_tokens(
    ids: Sequence[int], context: int, max_tokens: int, bos: int | None, overflow: Overflow
) -> tuple[Sequence[int], bool]:
    """The tokens of a raw prompt, and whether its oldest ones were dropped (a leading ``bos`` stays)."""
    if len(ids) < context:
        return ids, False
    if overflow == "refuse":
        raise _too_long(len(ids), context)
    room = room_for_prompt(context, max_tokens)
    head = list(ids[:1]) if bos is not None and ids[0] == bos else []
    return [*head, *ids[len(ids) - room + len(head) :]], True


def fit_messages(
    messages: Sequence[Message],
    encode: Callable[[Sequence[Message]], AnyEncoded],
    context: int,
    max_tokens: int,
    overflow: Overflow,
) -> tuple[AnyEncoded, bool]:
    """The encoded conversation, and whether its oldest turns were dropped.

    A turn is a user message with everything up to the next one. System messages and the last turn always stay; if
    these alone do not fit, ContextLimit is raised all the same.
    """
    encoded = encode(messages)
    if len(encoded.ids) < context:
        return encoded, False
    if overflow == "refuse":
        raise _too_long(len(encoded.ids), context)
    kept, room = list(messages), room_for_prompt(context, max_tokens)
    while len(encoded.ids) > room:
        shorter = _without_oldest_turn(kept)
        if shorter is None:
            if len(encoded.ids) < context:
                break
            raise _too_long(len(encoded.ids), context, "even with every older turn dropped")
        kept = shorter
        encoded = encode(kept)
    return encoded, True


def _without_oldest_turn(messages: Sequence[Message]) -> list[Message] | None:
    """The messages less the first turn after the system messages; None where only one turn is left."""
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if len(starts) < 2:
        return None
    return [message for index, message in enumerate(messages) if index >= starts[1] or message.get("role") == "system"]


def _too_long(tokens: int, context: int, condition: str = "") -> ContextLimit:
    return ContextLimit(
        f"the prompt takes {tokens:,} tokens{' ' + condition if condition else ''}, the context holds {context:,} and "
        "the answer needs at least 1; shorten it, raise the context (--context), or let the oldest part go "
        "(--overflow drop-oldest)",
        needed=tokens + 1,
        available=context,
    )
