"""Making a prompt fit: refused with the numbers, or cut by a policy that was asked for, never silently."""

from __future__ import annotations

from bisect import bisect_left
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
    if start := first_kept(messages, encode, context, max_tokens):
        encoded = encode(_from(messages, start))
    if len(encoded.ids) >= context:
        raise _too_long(len(encoded.ids), context, "even with every older turn dropped")
    return encoded, True


def first_kept(
    messages: Sequence[Message], encode: Callable[[Sequence[Message]], Encoded], context: int, max_tokens: int
) -> int:
    """The message from which on a conversation that is too long is kept; 0 where nothing can be dropped."""
    room = room_for_prompt(context, max_tokens)
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"][1:]
    fits = bisect_left(starts, True, key=lambda start: len(encode(_from(messages, start)).ids) <= room)
    return starts[min(fits, len(starts) - 1)] if starts else 0


def kept_from(
    messages: Sequence[Message], encode: Callable[[Sequence[Message]], Encoded], context: int, max_tokens: int
) -> int:
    """``first_kept``, but 0 also where what is kept would not fit either."""
    start = first_kept(messages, encode, context, max_tokens)
    return start if len(encode(_from(messages, start)).ids) < context else 0


def _from(messages: Sequence[Message], start: int) -> list[Message]:
    """The messages from ``start`` on, and every system message."""
    return [message for index, message in enumerate(messages) if index >= start or message.get("role") == "system"]


def _too_long(tokens: int, context: int, condition: str = "") -> ContextLimit:
    return ContextLimit(
        f"the prompt takes {tokens:,} tokens{' ' + condition if condition else ''}, the context holds {context:,} and "
        "the answer needs at least 1; shorten it, raise the context (--context), or let the oldest part go "
        "(--overflow drop-oldest)",
        needed=tokens + 1,
        available=context,
    )
