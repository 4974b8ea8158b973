"""One request's speculation: asks its drafters, keeps their accounts, and says at the end what each was worth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from edgeinfer.speculation.certainty import Price
from edgeinfer.speculation.controller import Account, best_rate
from edgeinfer.speculation.costs import MOST_ROWS
from edgeinfer.speculation.drafter import EMPTY, Computing, Draft, Drafter, Grammar, Proposal
from edgeinfer.types import DrafterReport, Speculation

_STREAK = 24  # right guesses in a row that end a parking early
_PARKED = "parked for a while: drafts cost more than they gave"
_log = logging.getLogger(__name__)


class Rates(Protocol):
    """What a step costs now."""

    @property
    def known(self) -> bool: ...

    @property
    def plain(self) -> float:
        """Seconds of a plain step."""

    @property
    def ratios(self) -> Sequence[float]:
        """The cost of a step by rows, in plain ones."""


@dataclass(slots=True)
class Seat:
    """A drafter at work. ``price``: of a drafter that computes."""

    drafter: Drafter
    price: Price | None = None
    account: Account = field(default_factory=Account)
    offer: Draft = EMPTY
    offered: bool = False
    drafted: int = 0
    accepted: int = 0
    streak: int = 0
    failed: str = ""

    def why(self) -> str:
        """Why it did not draft more; empty where nothing held it back."""
        if self.failed:
            return self.failed
        if self.account.times_parked:
            return _PARKED
        if self.drafted:
            return ""
        return "drafts would not have paid" if self.offered else "nothing repeats"


class Pilot:
    """Between two steps: ``offer``, ``make`` where the offer is only a forecast, ``choose`` or ``rest``, then
    ``observe`` with the tokens that came."""

    def __init__(
        self,
        seats: Sequence[Seat],
        vocab_size: int,
        greedy: bool,
        on_close: Callable[[Sequence[int]], None],
        grammar: Grammar | None = None,
    ) -> None:
        self.greedy = greedy
        self.draft: Sequence[int] = ()  # to verify in this step
        self.leaving = False  # the pipeline, for a draft in the next step
        self.fresh = 0  # tokens of this step
        self.spent = self.drafting = 0.0  # seconds that drafting took in this step, and of these on this thread
        self.thought = 0.0  # seconds of this thread that all else about it took
        self._seats = list(seats)
        self._gone: list[Seat] = []
        self._vocab_size = vocab_size
        self._on_close = on_close
        self._grammar = grammar
        self._seat = self._seats[0] if self._seats else None  # whose offer it is
        self._steps = self._tokens = 0
        self._seconds = self._plain_seconds = self._thought = 0.0

    @property
    def account(self) -> Account:
        """Of the drafter whose offer is the best."""
        return self._seat.account if self._seat else Account()

    @property
    def proposals(self) -> Sequence[Proposal]:
        """Of a draft whose tokens were drawn."""
        return self._seat.offer.proposals[: len(self.draft)] if self._seat and self.draft else ()

    @property
    def forecasting(self) -> bool:
        """The offer is a forecast: its tokens are not drafted yet."""
        return bool(self._seat and self._seat.offer.prices)

    def offer(self, limit: int, rates: Rates) -> Draft:
        """The best draft of at most ``limit`` tokens, or its forecast. While a drafter is parked, and with costs
        unknown, it only guesses the next token, and that only where a guess costs nothing."""
        limit = min(limit, MOST_ROWS - 1)
        self.rest()
        found: list[Seat] = []
        for seat in self._seats if limit > 0 else ():
            idle = seat.account.parked > 0 or not rates.known
            if seat.price is None:
                seat.offer = self._asked(seat, 1 if idle else limit)
            elif not idle:
                seat.offer = self._forecast(seat, seat.price, limit, rates.plain)
            if seat.offer.survival:
                seat.offered = True
                if not idle:
                    found.append(seat)
        if not found:
            return EMPTY
        self._seat = found[0] if len(found) == 1 else max(found, key=lambda seat: best_rate(seat.offer, rates.ratios))
        return self._seat.offer

    def make(self, length: int, plain: float) -> Draft:
        """Has the forecast drafted, up to ``length`` tokens."""
        seat = self._seat
        assert seat is not None
        assert seat.price is not None
        started, thought = time.perf_counter(), time.thread_time()
        seat.offer = self._asked(seat, length)
        self.spent, self.drafting = time.perf_counter() - started, time.thread_time() - thought
        seat.price.learn(max(1, len(seat.offer.tokens)), self.spent, plain)
        return seat.offer

    def choose(self, length: int) -> None:
        """Verifies the first ``length`` tokens of the offer in this step."""
        if self._seat is not None and not self.forecasting:
            self.draft = self._seat.offer.tokens[:length]

    def rest(self) -> None:
        """No draft in this step."""
        self.draft, self.leaving, self.fresh, self.spent, self.drafting, self.thought = (), False, 0, 0.0, 0.0, 0.0
        for seat in self._seats:
            seat.offer = EMPTY

    def observe(self, tokens: Sequence[int], accepted: int, decoding: bool) -> None:
        """The step gave ``tokens``, the first ``accepted`` of them drafted. ``decoding``: it was a pass of the model
        that was not part of the prompt's."""
        self.fresh = len(tokens)
        self._steps += decoding
        if self._seat is not None and self.draft:
            self._seat.drafted += len(self.draft)
            self._seat.accepted += accepted
        if not tokens:
            return
        started = time.thread_time()
        self._tokens += len(tokens)
        for seat in self._seats:
            if seat.account.parked:
                _follow_streak(seat, tokens[0])
            seat.account.passed(len(tokens))
            try:
                if seat is self._seat and self.draft and seat.price is not None:
                    verified = Draft(self.draft, seat.offer.survival[: len(self.draft)])
                    cast(Computing, seat.drafter).learn(verified, accepted)
                seat.drafter.observe(tokens)
            except Exception as error:  # a drafter may be anyone's: it ends, and not the request
                self._fell(seat, error)
        self.thought += time.thread_time() - started

    def timed(self, seconds: float, plain: float) -> None:
        """The step took ``seconds``, a plain one takes ``plain``."""
        self._seconds += seconds
        self._thought += self.thought
        self._plain_seconds += self.fresh * plain

    def report(self) -> Speculation:
        seats = [*self._seats, *self._gone]
        drafted = any(seat.drafted for seat in seats)
        speedup = self._plain_seconds / self._seconds if self._seconds and drafted else 1.0
        of_steps = max(0, self._tokens - 1)  # the first token comes of the prompt's pass
        reports = tuple(DrafterReport(each.drafter.name, each.drafted, each.accepted, each.why()) for each in seats)
        controller = self._thought / self._seconds if self._seconds else 0.0
        return Speculation(self._steps, of_steps, speedup, _why(seats), reports, controller)

    def close(self, output: Sequence[int]) -> None:
        for seat in self._seats:
            try:
                seat.drafter.close()
            except Exception as error:  # likewise
                self._fell(seat, error)
        self._on_close(output)

    def drop(self, seat: Seat, why: str) -> None:
        """Does without a drafter for the rest of the request."""
        seat.failed = f"{type(seat.drafter).__name__} {why}"
        seat.offer = EMPTY
        self._seats = [each for each in self._seats if each is not seat]  # which may be being gone through
        self._gone.append(seat)
        _log.warning("a drafter was dropped for the rest of the request: %s", seat.failed)

    def _fell(self, seat: Seat, error: Exception) -> None:
        self.drop(seat, f"raised {type(error).__name__}: {error}")

    def _forecast(self, seat: Seat, price: Price, limit: int, plain: float) -> Draft:
        try:
            survival = cast(Computing, seat.drafter).forecast(limit)
        except Exception as error:  # likewise
            self._fell(seat, error)
            return EMPTY
        return Draft((), survival, prices=price.of(len(survival), plain)) if survival else EMPTY

    def _asked(self, seat: Seat, limit: int) -> Draft:
        try:
            draft = seat.drafter.propose(limit)
        except Exception as error:  # likewise
            self._fell(seat, error)
            return EMPTY
        if not draft.tokens:
            return EMPTY
        if fault := self._fault(draft, limit):
            self.drop(seat, fault)
            return EMPTY
        if self._grammar is not None and not draft.proposals:
            allowed = self._grammar.allowed(draft.tokens)
            draft = Draft(draft.tokens[:allowed], draft.survival[:allowed])
        return draft

    def _fault(self, draft: Draft, limit: int) -> str:
        count = len(draft.tokens)
        if count > limit or count != len(draft.survival) or (draft.proposals and len(draft.proposals) != count):
            return f"proposed {count} tokens with {len(draft.survival)} chances where {limit} fit"
        if not 0 <= min(draft.tokens) <= max(draft.tokens) < self._vocab_size:
            return "proposed a token outside the vocabulary"
        if not 0 <= min(draft.survival) <= max(draft.survival) <= 1:
            return "proposed a chance that is none"
        return ""


def _why(seats: Sequence[Seat]) -> str:
    """Why no more was drafted: what failed, or the first drafter's reason; empty where one was free to."""
    failed = [seat.failed for seat in seats if seat.failed]
    reasons = failed or [seat.why() for seat in seats]
    return reasons[0] if reasons and all(reasons) else ""


def _follow_streak(seat: Seat, token: int) -> None:
    right = bool(seat.offer.tokens) and seat.offer.tokens[0] == token
    seat.streak = seat.streak + 1 if right else 0
    if seat.streak >= _STREAK and seat.account.parked:
        seat.streak = 0
        seat.account.unpark()
