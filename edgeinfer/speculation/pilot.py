"""One request's speculation: asks its drafters, keeps their accounts, and says at the end what each was worth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from edgeinfer.speculation.certainty import Price
from edgeinfer.speculation.controller import Account, best_rate
from edgeinfer.speculation.costs import MOST_ROWS, Terms
from edgeinfer.speculation.drafter import EMPTY, HOPEFUL, Computing, Draft, Glancing, Grammar, Proposal
from edgeinfer.speculation.seat import Seat, Stopwatch
from edgeinfer.types import DrafterReport, Speculation

_REPRICE = 0.02  # change of a plain step's seconds that prices follow
TOGETHER = 8
"""Plain steps that may wait to be learned from at one time: what that needs has left the caches in between."""
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


class Pilot:
    """Between two steps: where there is ``hope``, ``offer``, ``make`` where the offer is only a forecast, and
    ``choose``; or else ``rest``. Then ``observe`` with the tokens that came."""

    def __init__(
        self,
        seats: Sequence[Seat],
        vocab_size: int,
        greedy: bool,
        on_close: Callable[[Sequence[int]], None],
        grammar: Grammar | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.greedy = greedy
        self.draft: Sequence[int] = ()  # to verify in this step
        self.leaving = False  # the pipeline, for a draft in the next step
        self.fresh = 0  # tokens of this step
        self.refused: tuple[Draft, Terms, float] | None = None  # a forecast that does not pay, its terms and margin
        self.hope = bool(seats)  # that a draft may pay in the next step: whether to ask for an offer
        self.terms: Terms | None = None  # of a step, once they are known
        self.waiting: list[float] = []  # seconds of plain steps of one token that are still to be learned from
        self.spent = self.drafting = 0.0  # seconds that drafting took in this step, and of these on this thread
        self.thought = 0.0  # seconds of this thread that all else about drafts took by now, in all steps
        self._watch = watch or Stopwatch()
        self._seats = list(seats)
        self._gone: list[Seat] = []
        self._vocab_size = vocab_size
        self._on_close = on_close
        self._grammar = grammar
        self._seat = self._seats[0] if self._seats else None  # whose offer it is
        self._lone = self._alone()
        self._unseen: list[int] = []  # tokens that came while the lone drafter was parked
        self._resting = True  # nothing is offered
        self._steps = self._tokens = 0
        self._seconds = self._known_seconds = self._plain_seconds = 0.0

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

    def set_terms(self, terms: Terms | None) -> None:
        """What steps of this request cost from now on; None where that is not known yet."""
        if terms is self.terms:
            return
        self.terms, self.hope = terms, True
        if self._lone is not None and terms is not None:
            try:
                cast(Glancing, self._lone.drafter).set_terms(terms)
            except Exception as error:  # likewise
                self._fell(self._lone, error)

    def offer(self, limit: int, rates: Rates) -> Draft:
        """The best draft of at most ``limit`` tokens, or its forecast. While a drafter is parked, and with costs
        unknown, it only guesses the next token, and that only where a guess costs nothing."""
        limit = min(limit, MOST_ROWS - 1)
        self.rest()
        self._resting = False
        self._catch_up()
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
        started, thought = time.perf_counter(), self._watch.start()
        seat.offer = self._asked(seat, length)
        self.spent, self.drafting = time.perf_counter() - started, self._watch.stop(thought)
        seat.forecast = EMPTY
        seat.price.learn(max(1, len(seat.offer.tokens)), self.spent, plain)
        return seat.offer

    def choose(self, length: int) -> None:
        """Verifies the first ``length`` tokens of the offer in this step."""
        if self._seat is not None and not self.forecasting:
            self.draft = self._seat.offer.tokens[:length]

    def rest(self) -> None:
        """No draft in this step."""
        self.fresh = 0
        if self._resting:
            return
        self.draft, self.leaving, self.spent, self.drafting, self._resting = (), False, 0.0, 0.0, True
        for seat in self._seats:
            seat.offer = EMPTY

    def observe(
        self, tokens: Sequence[int], accepted: int, decoding: bool, room: int = 0, pipelined: bool = False
    ) -> None:
        """The step gave ``tokens``, the first ``accepted`` of them drafted. ``decoding``: it was a pass of the model
        that was not part of the prompt's.

        The next step's draft may have ``room`` tokens; ``pipelined``: the first of them is being computed already.
        """
        self.fresh = len(tokens)
        self._steps += decoding
        if self._seat is not None and self.draft:
            self._seat.drafted += len(self.draft)
            self._seat.accepted += accepted
        if not tokens:
            return
        self._tokens += len(tokens)
        started = self._watch.start() if self._watch.running else 0.0
        if self._lone is not None and self.terms is not None and not (self.draft or self.leaving):
            self._go_on(self._lone, tokens, room, pipelined)
        else:
            self.hope = bool(self._seats)
            self._catch_up()
            for seat in self._seats:
                self._tell(seat, tokens, accepted)
        if self._watch.running:
            self.thought += self._watch.stop(started)

    def timed(self, seconds: float, tokens: int, plain: float | None) -> None:
        """So many tokens took ``seconds``, a plain step takes ``plain``, where that is known."""
        self._seconds += seconds
        if plain:
            self._known_seconds += seconds
            self._plain_seconds += tokens * plain

    def report(self) -> Speculation:
        seats = [*self._seats, *self._gone]
        drafted = any(seat.drafted for seat in seats)
        speedup = self._plain_seconds / self._known_seconds if self._known_seconds and drafted else 1.0
        of_steps = max(0, self._tokens - 1)  # the first token comes of the prompt's pass
        reports = tuple(DrafterReport(each.drafter.name, each.drafted, each.accepted, each.why()) for each in seats)
        controller = self.thought / self._seconds if self._seconds else 0.0
        return Speculation(self._steps, of_steps, speedup, _why(seats), reports, controller)

    def close(self, output: Sequence[int]) -> None:
        self._catch_up()
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
        self._lone, self.terms = self._alone(), None
        _log.warning("a drafter was dropped for the rest of the request: %s", seat.failed)

    def _alone(self) -> Seat | None:
        """The only drafter, where it can be glanced at."""
        return self._seats[0] if len(self._seats) == 1 and isinstance(self._seats[0].drafter, Glancing) else None

    def _fell(self, seat: Seat, error: Exception) -> None:
        self.drop(seat, f"raised {type(error).__name__}: {error}")

    def _go_on(self, seat: Seat, tokens: Sequence[int], room: int, pipelined: bool) -> None:
        """After a plain step, with a drafter alone that can glance. A parked one looks at several tokens at a time."""
        account = seat.account
        if account.parked:
            account.passed(len(tokens))
            self._unseen += tokens
            if len(self._unseen) >= TOGETHER or not account.parked:
                self._catch_up()
            self.hope = not account.parked
            return
        account.passed(len(tokens))
        try:
            worth = cast(Glancing, seat.drafter).advance(tokens, min(room, MOST_ROWS - 1), pipelined)
        except Exception as error:  # a drafter may be anyone's: it ends, and not the request
            self._fell(seat, error)
            return
        self.hope = worth == HOPEFUL
        if worth:
            seat.offered = True

    def _catch_up(self) -> None:
        """Has the parked drafter look at what came meanwhile."""
        seat, unseen = self._lone, self._unseen
        if seat is None or not unseen:
            return
        try:
            seat.foretold(cast(Glancing, seat.drafter).shadow(unseen), len(unseen))
        except Exception as error:  # likewise
            self._fell(seat, error)
        unseen.clear()

    def _tell(self, seat: Seat, tokens: Sequence[int], accepted: int) -> None:
        """A drafter what came, and what became of its draft if there was one."""
        right = bool(seat.offer.tokens) and seat.offer.tokens[0] == tokens[0]
        try:
            if seat.price is not None and seat is self._seat and self.draft:
                verified = Draft(self.draft, seat.offer.survival[: len(self.draft)])
                cast(Computing, seat.drafter).learn(verified, accepted)
            seat.drafter.observe(tokens)
        except Exception as error:  # likewise
            self._fell(seat, error)
            return
        seat.foretold(int(right), 1)
        seat.account.passed(len(tokens))

    def _forecast(self, seat: Seat, price: Price, limit: int, plain: float) -> Draft:
        try:
            survival = cast(Computing, seat.drafter).forecast(limit)
        except Exception as error:  # likewise
            self._fell(seat, error)
            return EMPTY
        if not survival:
            return EMPTY
        if survival is not seat.forecast.survival or abs(plain - seat.priced_at) > _REPRICE * plain:
            seat.forecast, seat.priced_at = Draft((), survival, prices=price.of(len(survival), plain)), plain
        return seat.forecast

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
