"""Ways out when a conversation does not fit the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Answer without the oldest messages."""


@dataclass(frozen=True, slots=True)
class Lengthen:
    """Load the model again, with room for so many tokens."""

    context: int


Way: TypeAlias = DropOldest | Lengthen
