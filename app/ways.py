"""Ways out when a conversation does not fit the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from edgeinfer.library import KVChoice

ANSWER_TOKENS = 1024
"""Room for the answer that a longer context is to have."""
_TIGHTER = 3  # formats that are offered beside the present one


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Answer without the oldest messages."""


@dataclass(frozen=True, slots=True)
class Lengthen:
    """Load the model again with room for so many tokens, and with keys and values in a format; empty: the present."""

    context: int
    kv: str = ""


Way: TypeAlias = DropOldest | Lengthen


def lengthenings(formats: list[KVChoice], kv: str, needed: int, trained: int) -> list[tuple[Lengthen, KVChoice | None]]:
    """Contexts that hold ``needed`` tokens and an answer: in the present format, then in tighter ones that cost least.

    ``formats`` are those of the model, from the largest to the smallest; none where its backend has but one.
    """
    wanted = 1 << (needed + ANSWER_TOKENS - 1).bit_length()
    if not formats:
        return [(Lengthen(min(wanted, trained)), None)] if trained > needed else []
    place = next((place for place, each in enumerate(formats) if each.name == kv), 0)
    now, *tighter = [each for each in formats[place:] if each.longest > needed or each is formats[place]]
    found: list[tuple[Lengthen, KVChoice | None]] = []
    if now.longest > needed:
        found.append((Lengthen(min(wanted, now.longest)), None))
    return found + [(Lengthen(min(wanted, each.longest), each.name), each) for each in tighter[:_TIGHTER]]


def described(way: Lengthen, tighter: KVChoice | None, now: KVChoice | None) -> str:
    """In a line; of a tighter format what it saves beside the present one, and what it costs."""
    if tighter is None:
        return f"Load the model with {way.context:,} tokens of context"
    beside = f", not {now.bytes_ratio:.0%}" if now is not None else ""
    cost = f"KL {tighter.kl:.2g}" if tighter.kl is not None else "KL not measured"
    return f"{way.context:,} tokens with KV {way.kv}: {tighter.bytes_ratio:.0%} of exact memory{beside}; {cost}"
