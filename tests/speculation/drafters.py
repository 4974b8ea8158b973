"""Drafters good and bad, and a controller that lets every draft through."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgeinfer.backends.base import ModelInfo
from edgeinfer.speculation.costs import MOST_ROWS
from edgeinfer.speculation.drafter import EMPTY, Draft, Drafter, Text
from edgeinfer.speculation.speculation import Shared, Source
from edgeinfer.speculation.step import Candidate


class Scripted:
    """Drafts ``tokens(text, limit)`` each time."""

    name = "scripted"

    def __init__(self, prompt: Sequence[int], tokens: Callable[[list[int], int], Sequence[int]]) -> None:
        self.text = list(prompt)
        self.closed = 0
        self._tokens = tokens

    def propose(self, limit: int) -> Draft:
        tokens = list(self._tokens(self.text, limit))
        return Draft(tokens, [1.0] * len(tokens)) if tokens else EMPTY

    def observe(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def close(self) -> None:
        self.closed += 1


class Eager(Shared):
    """Verifies every draft in full, whatever it costs."""

    def choose(self, candidates: Sequence[Candidate], depth: int) -> None:
        for candidate in candidates:
            if candidate.pilot is not None:
                draft = candidate.pilot.offer(candidate.room, FREE)
                if candidate.pipelined:
                    candidate.pilot.leaving = len(draft.survival) > 1
                    continue
                if candidate.pilot.forecasting:
                    draft = candidate.pilot.make(len(draft.survival), FREE.plain)
                candidate.pilot.choose(len(draft.tokens))


@dataclass(frozen=True)
class Free:
    """Every step costs as much as a plain one."""

    known: bool = True
    plain: float = 1.0
    ratios: Sequence[float] = (1.0,) * (MOST_ROWS + 1)


FREE = Free()


def only(
    info: ModelInfo,
    make: Callable[[Text], Drafter],
    kind: type[Shared] = Shared,
    price: tuple[float, float] | None = None,
) -> Any:
    """What requests share whose only drafter is ``make``'s."""
    shared = kind(info, more={"only": Source(make, price)})
    shared.sources = {"only": shared.sources["only"]}
    return shared


def eager(info: ModelInfo, tokens: Callable[[list[int], int], Sequence[int]]) -> Eager:
    shared: Eager = only(info, lambda text: Scripted(text.prompt, tokens), Eager)
    return shared


def wrong(vocab: int) -> Callable[[list[int], int], Sequence[int]]:
    """Never what a text that counts upwards or a likely model says; seven tokens at a time."""
    return lambda text, limit: [(text[-1] * 7 + 3 + step) % vocab for step in range(min(limit, 7))]


def repeating(text: list[int], limit: int) -> Sequence[int]:
    """The last token again and again, as often as it may."""
    return [text[-1]] * limit


def endless(end: int) -> Callable[[list[int], int], Sequence[int]]:
    """Runs past the end of the text: some tokens, an end, and more."""
    return lambda text, limit: [text[-1], end, text[-1], end, 1][:limit]


def chance(vocab: int) -> Callable[[list[int], int], Sequence[int]]:
    """Random tokens, of a random number."""
    source = random.Random(0)
    return lambda text, limit: [source.randrange(vocab) for _ in range(source.randint(0, min(limit, 9)))]
