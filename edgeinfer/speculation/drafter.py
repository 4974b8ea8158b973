"""What a drafter is: it guesses how a text goes on, and says how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next, and for each the chance that it and all before it come: never rising."""

    tokens: Sequence[int]
    survival: Sequence[float]

    @property
    def expected(self) -> float:
        """Tokens that a verified draft is expected to give, the one that verifying always gives left out."""
        return sum(self.survival)


EMPTY = Draft((), ())


class Drafter(Protocol):
    """Follows one text. It never touches the model's memory or the sampler, so it cannot change what is said."""

    def propose(self, limit: int) -> Draft:
        """How the text may go on: at most ``limit`` tokens, none where it has no idea."""

    def observe(self, tokens: Sequence[int]) -> None:
        """The text went on with ``tokens``, whether they were drafted or not."""

    def close(self) -> None:
        """The text has ended; what was learned from it may be kept."""
