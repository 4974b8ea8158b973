"""An engine as the bench sees it, and how a case is measured on one."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from edgeinfer.bench.busy import Guard
from edgeinfer.bench.plan import PACING_TOKENS, Case, Kind

LEAST_DECODED = 4
MOST_REPEATS = {"prefill": 8, "rows": 64}


class Subject(Protocol):
    """One loaded model with one sequence. Each method waits until the logits are there and returns seconds."""

    kinds: ClassVar[tuple[Kind, ...]]
    computes_depth: ClassVar[bool]  # whether ``hold`` takes as long as a prompt of that many tokens

    def hold(self, depth: int) -> None:
        """Makes the sequence hold ``depth`` tokens."""

    def decode(self, count: int) -> float:
        """Chooses ``count`` tokens greedily, one a step, after what is held; then holds what it held before."""

    def prefill(self, length: int) -> float:
        """Computes a prompt and the logits of its last token, from nothing."""

    def verify(self, rows: int) -> float:
        """One step of ``rows`` tokens with all their logits; then holds what it held before."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: a token (decode), a prompt (prefill) or a step (rows). foreign: cores that others kept busy."""

    seconds: float
    foreign: float | None
    wall: float


class TooSlow(Exception):
    """A case that would take longer than the plan has patience for."""


class NotMeasured(Exception):
    """A case that this subject does not have."""


class Measurer:
    """Measures cases on a subject: ``warm`` finds out how much to do in one window, ``sample`` does it."""

    def __init__(
        self,
        subject: Subject,
        window: float,
        patience: float,
        guard: Guard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject = subject
        self._window, self._patience = window, patience
        self._guard, self._clock = guard, clock
        self._pace = 0.0  # seconds a token of a prompt
        self._held = 0
        self._amounts: dict[Case, int] = {}

    def warm(self, case: Case) -> None:
        """Runs a case untimed. Raises TooSlow or NotMeasured."""
        if case.kind not in self._subject.kinds:
            raise NotMeasured("not measured")
        self._check_patience(case)
        self._hold(case)
        if case.kind == "decode":
            step = self._subject.decode(LEAST_DECODED) / LEAST_DECODED
            self._refuse_beyond(step * LEAST_DECODED)
            fits = int(4 * self._window / step) if step > 0 else case.size
            self._amounts[case] = max(LEAST_DECODED, min(case.size, fits))
        else:
            once = self._subject.prefill(case.size) if case.kind == "prefill" else self._subject.verify(case.size)
            wanted = math.ceil(self._window / once) if once > 0 else 1
            self._amounts[case] = max(1, min(MOST_REPEATS[case.kind], wanted))

    def sample(self, case: Case) -> Sample:
        """One measurement of a case that was warmed."""
        amount = self._amounts[case]
        self._hold(case)
        started = self._clock()
        self._guard.start()
        if case.kind == "decode":
            seconds = self._subject.decode(amount) / amount
        elif case.kind == "prefill":
            seconds = sum(self._subject.prefill(case.size) for _ in range(amount)) / amount
        else:
            seconds = sum(self._subject.verify(case.size) for _ in range(amount)) / amount
        return Sample(seconds, self._guard.stop(), self._clock() - started)

    def _hold(self, case: Case) -> None:
        if case.kind == "prefill":
            self._held = -1  # whatever the prompt leaves behind
        elif self._held != case.depth:
            self._subject.hold(case.depth)
            self._held = case.depth

    def _check_patience(self, case: Case) -> None:
        if "prefill" in self._subject.kinds and not self._pace:
            self._subject.prefill(PACING_TOKENS)
            self._pace = self._subject.prefill(PACING_TOKENS) / PACING_TOKENS
            self._held = -1
        if case.kind == "prefill":
            self._refuse_beyond(case.size * self._pace)
        elif self._subject.computes_depth:
            self._refuse_beyond(case.depth * self._pace)

    def _refuse_beyond(self, foreseen: float) -> None:
        if foreseen > self._patience:
            raise TooSlow(f"left out: would take about {foreseen:.0f} s a round")


def random_tokens(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """The same ids for every engine."""
    source = random.Random(seed)
    return [source.randrange(vocab_size) for _ in range(count)]
