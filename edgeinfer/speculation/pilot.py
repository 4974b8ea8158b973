"""One request's speculation: asks its drafters, keeps its account, and says at the end what it was worth."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edgeinfer.speculation.controller import Account
from edgeinfer.speculation.costs import MOST_ROWS
from edgeinfer.speculation.drafter import EMPTY, Draft, Drafter
from edgeinfer.types import Speculation

_STREAK = 24  # right guesses in a row that end a parking early
_log = logging.getLogger(__name__)


class Pilot:
    """Between two steps: ``offer``, then the chosen ``draft``, then ``observe`` with the tokens that came."""

    def __init__(
        self, drafters: Sequence[Drafter], vocab_size: int, greedy: bool, on_close: Callable[[Sequence[int]], None]
    ) -> None:
        self.greedy = greedy
        self.account = Account()
        self.draft: Sequence[int] = ()  # to verify in this step
        self.leaving = False  # the pipeline, for a draft in the next step
        self.fresh = 0  # tokens of this step
        self._drafters = list(drafters)
        self._vocab_size = vocab_size
        self._on_close = on_close
        self._offer = EMPTY
        self._streak = 0
        self._offered = 0
        self._steps = self._tokens = self._drafted = self._accepted = 0
        self._seconds = self._plain_seconds = 0.0
        self._failed = ""

    def offer(self, limit: int, known_cost: bool) -> Draft:
        """The best draft of at most ``limit`` tokens; while parked, and with costs unknown, only guessed at."""
        idle = self.account.parked > 0 or not known_cost
        limit = min(limit, MOST_ROWS - 1)
        self.draft, self.leaving, self.fresh = (), False, 0
        self._offer = max(
            (self._ask(drafter, 1 if idle else limit) for drafter in tuple(self._drafters) if limit > 0),
            key=lambda draft: draft.expected,
            default=EMPTY,
        )
        self._offered += bool(self._offer.tokens)
        return EMPTY if idle else self._offer

    def choose(self, length: int) -> None:
        """Verifies the first ``length`` tokens of the offer in this step."""
        self.draft = self._offer.tokens[:length]

    def rest(self) -> None:
        """No draft in this step."""
        self.draft, self.leaving, self.fresh, self._offer = (), False, 0, EMPTY

    def observe(self, tokens: Sequence[int], accepted: int, decoding: bool) -> None:
        """The step gave ``tokens``, the first ``accepted`` of them drafted. ``decoding``: it was a pass of the model
        that was not part of the prompt's."""
        self.fresh = len(tokens)
        self._steps += decoding
        self._drafted += len(self.draft)
        self._accepted += accepted
        if not tokens:
            return
        self._tokens += len(tokens)
        self._follow_streak(tokens[0])
        self.account.passed(len(tokens))
        for drafter in tuple(self._drafters):
            try:
                drafter.observe(tokens)
            except Exception as error:  # a drafter may be anyone's; no request fails for it
                self._drop(drafter, f"raised {type(error).__name__}: {error}")

    def timed(self, seconds: float, plain: float) -> None:
        """The step took ``seconds``, a plain one takes ``plain``."""
        self._seconds += seconds
        self._plain_seconds += self.fresh * plain

    def report(self) -> Speculation:
        speedup = self._plain_seconds / self._seconds if self._seconds and self._drafted else 1.0
        of_steps = max(0, self._tokens - 1)  # the first token comes of the prompt's pass
        return Speculation(self._steps, of_steps, speedup, self._why())

    def close(self, output: Sequence[int]) -> None:
        for drafter in tuple(self._drafters):
            try:
                drafter.close()
            except Exception as error:  # a drafter may be anyone's; no request fails for it
                self._drop(drafter, f"raised {type(error).__name__}: {error}")
        self._drafters.clear()
        self._on_close(output)

    def _why(self) -> str:
        """Why no more was drafted; empty where nothing held it back."""
        if self._failed:
            return self._failed
        if self.account.times_parked:
            return "parked for a while: drafts cost more than they gave"
        if self._drafted:
            return ""
        return "drafts would not have paid" if self._offered else "nothing repeats"

    def _ask(self, drafter: Drafter, limit: int) -> Draft:
        try:
            draft = drafter.propose(limit)
        except Exception as error:  # a drafter may be anyone's; no request fails for it
            self._drop(drafter, f"raised {type(error).__name__}: {error}")
            return EMPTY
        if fault := self._fault(draft, limit):
            self._drop(drafter, fault)
            return EMPTY
        return draft

    def _fault(self, draft: Draft, limit: int) -> str:
        if len(draft.tokens) > limit or len(draft.tokens) != len(draft.survival):
            return f"proposed {len(draft.tokens)} tokens with {len(draft.survival)} chances where {limit} fit"
        if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < self._vocab_size:
            return "proposed a token outside the vocabulary"
        if draft.survival and not 0 <= min(draft.survival) <= max(draft.survival) <= 1:
            return "proposed a chance that is none"
        return ""

    def _drop(self, drafter: Drafter, why: str) -> None:
        self._drafters.remove(drafter)
        self._failed = f"{type(drafter).__name__} {why}"
        _log.warning("a drafter was dropped for the rest of the request: %s", self._failed)

    def _follow_streak(self, token: int) -> None:
        right = bool(self._offer.tokens) and self._offer.tokens[0] == token
        self._streak = self._streak + 1 if right else 0
        if self._streak >= _STREAK and self.account.parked:
            self._streak = 0
            self.account.unpark()
