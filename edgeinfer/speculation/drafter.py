"""What a drafter is: it guesses how a text goes on, and says how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgeinfer.speculation.costs import Terms

Proposal: TypeAlias = npt.NDArray[np.float32]
"""(V,): the chances that a drafted token was drawn with."""


class Draft(NamedTuple):
    """Tokens that may come next, and for each the chance that it and all before it come: never rising.

    ``proposals``: a distribution for each token, of a drafter that draws; without them each token is a point mass, and
    the text is then the one that is made without drafts. ``prices``: what drafting each token would cost, in plain
    steps, where that is not done yet.
    """

    tokens: Sequence[int]
    survival: Sequence[float]
    proposals: Sequence[Proposal] = ()
    prices: Sequence[float] = ()

    @property
    def expected(self) -> float:
        """Tokens that a verified draft is expected to give, the one that verifying always gives left out."""
        return sum(self.survival)


EMPTY = Draft((), ())


NO_GUESS, FAINT, HOPEFUL = range(3)


NO_GUESS, FAINT, HOPEFUL = range(3)


class Drafter(Protocol):
    """Follows one text. It never touches the model's memory or the sampler, so it cannot change what is said."""

    @property
    def name(self) -> str:
        """As a person asks for it."""

    def propose(self, limit: int) -> Draft:
        """How the text may go on: at most ``limit`` tokens, none where it has no idea."""

    def observe(self, tokens: Sequence[int]) -> None:
        """The text went on with ``tokens``, whether they were drafted or not."""

    def close(self) -> None:
        """The text has ended; what was learned from it may be kept."""


@runtime_checkable
class Glancing(Drafter, Protocol):
    """A drafter that can say whether a proposal may pay without making it. In most steps no more is wanted."""

    def set_terms(self, terms: Terms) -> None:
        """What a step costs from now on."""

    def advance(self, tokens: Sequence[int], limit: int, pipelined: bool) -> int:
        """Observes, and says what a proposal of ``limit`` tokens is worth: NO_GUESS, FAINT where it does not pay, or
        HOPEFUL where it may.

        ``pipelined``: its first token is being computed already.
        """

    def shadow(self, tokens: Sequence[int]) -> int:
        """Observes one token after the other, and guesses each: how many of the last ones were guessed."""


class Computing(Drafter, Protocol):
    """A drafter whose proposals take time worth counting. It is asked for one only where the forecast says it pays."""

    def forecast(self, limit: int) -> Sequence[float]:
        """The survival that a proposal of ``limit`` tokens would have."""

    def learn(self, draft: Draft, accepted: int) -> None:
        """Of a proposal that was verified so many tokens came true."""


class Confidence(Protocol):
    """Turns what a drafter feels about each of its tokens into the chance that it comes true.

    The default is ``certainty.Learned``, which counts. A drafter that was trained with a confidence of its own, as
    DSpark (DeepSeek, 2026) was, brings that in its place: nothing above a drafter sees the difference.
    """

    def forecast(self, limit: int) -> Sequence[float]:
        """Before a draft is made: the survival of its tokens."""

    def survival(self, certainty: Sequence[float]) -> Sequence[float]:
        """Of a draft that is made; ``certainty``: the drafter's own probability of each token."""

    def learn(self, certainty: Sequence[float], accepted: int) -> None:
        """Of a draft that was verified, the first ``accepted`` tokens came true."""


class Grammar(Protocol):
    """What an answer keeps to."""

    def forced(self) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens that must come next, and tokens that spell what must follow these in the usual way."""

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many first ones of ``tokens`` may come next."""


class Chooser(Protocol):
    """Chooses as the request's sampler would, from a row of logits (V,) of another model."""

    def point(self, row: npt.NDArray[np.float32], position: int) -> tuple[int, float]:
        """A token and its probability, with the random number of that position: the sampler's own choice where both
        models agree."""

    def drawn(self, row: npt.NDArray[np.float32], position: int) -> tuple[int, Proposal]:
        """A token drawn by a random number of its own, and the distribution that it was drawn from."""


@dataclass(slots=True)
class Text:
    """What a drafter is told of the text that it is to follow."""

    prompt: Sequence[int]
    temperature: float = 0.0
    grammar: Grammar | None = None
    chooser: Chooser | None = None
    trunk: Callable[[], Any] = field(default=lambda: None)
    """The model's own sequence, once it is open."""
