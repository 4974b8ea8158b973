"""A drafter's place in one request: its account and what it has given, and how long all that takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from edgeinfer.speculation.certainty import Price
from edgeinfer.speculation.controller import Account
from edgeinfer.speculation.drafter import EMPTY, Draft, Drafter

_STREAK = 24  # right guesses in a row that end a parking early
_PARKED = "parked for a while: drafts cost more than they gave"


class Stopwatch:
    """Times one step in ``EVERY``: to read a thread's own clock takes as long as most decisions."""

    EVERY = 7
    running: bool = False
    _steps: int = 0

    def next_step(self) -> None:
        self._steps = (self._steps + 1) % self.EVERY
        self.running = not self._steps

    def start(self) -> float:
        return time.thread_time()

    def stop(self, started: float) -> float:
        """Seconds of this thread, for the steps that are not timed as well."""
        return self.EVERY * (time.thread_time() - started)


@dataclass(slots=True)
class Seat:
    """A drafter at work. ``price``: of a drafter that computes."""

    drafter: Drafter
    price: Price | None = None
    account: Account = field(default_factory=Account)
    offer: Draft = EMPTY
    forecast: Draft = EMPTY  # the last one, and the seconds of a plain step that its prices are in
    priced_at: float = 0.0
    offered: bool = False
    drafted: int = 0
    accepted: int = 0
    streak: int = 0
    failed: str = ""

    def foretold(self, right: int, tokens: int) -> None:
        """Of so many tokens the last ``right`` ones were guessed. Enough in a row end a parking early."""
        if not self.account.parked:
            self.streak = 0
            return
        self.streak = self.streak + right if right == tokens else right
        if self.streak >= _STREAK:
            self.streak = 0
            self.account.unpark()

    def why(self) -> str:
        """Why it did not draft more; empty where nothing held it back."""
        if self.failed:
            return self.failed
        if self.account.times_parked:
            return _PARKED
        if self.drafted:
            return ""
        return "drafts would not have paid" if self.offered else "nothing repeats"
