"""Engines take turns: rounds of all cases in random order, in each case all engines in random order.

The rounds are what makes a ratio honest. Neighbours and clock rates drift over minutes; within a round they hit both
sides, and ratios are taken round by round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from edgeinfer.bench.busy import FOREIGN_LIMIT
from edgeinfer.bench.plan import Case, Plan
from edgeinfer.bench.probe import Probe
from edgeinfer.bench.remote import CaseSkipped, EngineFailed
from edgeinfer.bench.subject import Sample

T = TypeVar("T")

RERUNS = 5
"""How often a disturbed measurement is tried again before it is kept with a flag."""
SETTLE = 0.03
"""Seconds before each measurement: OpenMP's threads spin on for a while after the last one."""


class Engine(Protocol):
    """One engine, wherever it runs. Each method may raise EngineFailed; warm and sample also CaseSkipped."""

    def probe(self) -> Probe: ...

    def warm(self, case: Case) -> None: ...

    def sample(self, case: Case) -> Sample: ...


@dataclass(slots=True)
class Cell:
    """One case on one engine: seconds by round, the rounds that stayed disturbed, and why there is nothing."""

    seconds: dict[int, float] = field(default_factory=dict)
    disturbed: set[int] = field(default_factory=set)
    skipped: str = ""
    spent: float = 0.0


@dataclass(slots=True)
class Measured:
    """All that a session found, by engine."""

    cells: dict[str, dict[Case, Cell]]
    probes: dict[str, dict[int, Probe]]
    failures: dict[str, str]
    rounds: int = 0
    reruns: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """How far a session has come, for whoever watches."""

    done: int
    total: int
    doing: str


class Session:
    """Measures a plan on engines by name; those that fail drop out, the others go on."""

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        *,
        probed: frozenset[str],
        on_step: Callable[[Step], None] = lambda step: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._plan, self._engines, self._probed = plan, engines, probed
        self._on_step, self._clock, self._sleep = on_step, clock, sleep
        self._random = random.Random(plan.seed)
        self._done = 0
        self._started = self._rerun_seconds = 0.0
        self._total = (len(engines) * len(plan.cases) + len(probed)) * plan.rounds + len(engines) * len(plan.cases)
        self.measured = Measured(
            cells={name: {case: Cell() for case in plan.cases} for name in engines},
            probes={name: {} for name in probed},
            failures={},
        )
        self._probe_seconds = dict.fromkeys(probed, 0.0)

    def run(self) -> Measured:
        self._started = self._clock()
        for number in range(self._plan.rounds):
            if number and self._late():
                break
            self._probe_all(number)
            if not number:
                self._warm_all()
            self._round(number)
            self.measured.rounds = number + 1
        self._on_step(Step(self._total, self._total, "done"))
        return self.measured

    def _probe_all(self, number: int) -> None:
        for name in self._shuffled(sorted(self._probed)):
            if self._alive(name, "loading", number) and self._probe_seconds[name] <= self._plan.patience:
                started = self._clock()
                try:
                    self.measured.probes[name][number] = self._engines[name].probe()
                except EngineFailed as error:
                    self.measured.failures[name] = str(error)
                self._probe_seconds[name] += self._clock() - started

    def _warm_all(self) -> None:
        """Loads every engine and tries each case once, the short ones first."""
        for name, engine in self._engines.items():
            for case in sorted(self._plan.cases, key=lambda case: case.tokens):
                if self._alive(name, f"warming up: {describe(case)}"):
                    try:
                        engine.warm(case)
                    except CaseSkipped as skipped:
                        self.measured.cells[name][case].skipped = str(skipped)
                    except EngineFailed as error:
                        self.measured.failures[name] = str(error)

    def _round(self, number: int) -> None:
        for case in self._shuffled(self._plan.cases):
            for name in self._shuffled(list(self._engines)):
                cell = self.measured.cells[name][case]
                wanted = not cell.skipped and cell.spent <= self._plan.patience
                if self._alive(name, describe(case), number) and wanted:
                    self._measure(name, case, cell, number)

    def _measure(self, name: str, case: Case, cell: Cell, number: int) -> None:
        """One sample, tried again while other processes are in the way; of disturbed ones the least disturbed."""
        best: Sample | None = None
        for attempt in range(1 + RERUNS):
            self._sleep(SETTLE)
            try:
                sample = self._engines[name].sample(case)
            except EngineFailed as error:
                self.measured.failures[name] = str(error)
                return
            cell.spent += sample.wall
            if attempt:
                self.measured.reruns += 1
                self._rerun_seconds += sample.wall
            if best is None or (sample.foreign or 0.0) < (best.foreign or 0.0):
                best = sample
            if not disturbed(sample) or not self._may_rerun(cell):
                break
        assert best is not None
        cell.seconds[number] = best.seconds
        if disturbed(best):
            cell.disturbed.add(number)

    def _may_rerun(self, cell: Cell) -> bool:
        plan = self._plan
        return cell.spent <= plan.patience and self._rerun_seconds <= plan.reruns and not self._late()

    def _late(self) -> bool:
        return self._clock() - self._started > self._plan.limit

    def _alive(self, name: str, doing: str, number: int | None = None) -> bool:
        """Whether an engine still runs; says what comes next."""
        place = f"round {number + 1} of {self._plan.rounds}: " if number is not None else ""
        self._on_step(Step(self._done, self._total, f"{place}{doing} ({name})"))
        self._done += 1
        return name not in self.measured.failures

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(items, len(items))


def disturbed(sample: Sample | Probe) -> bool:
    """Whether others took more of the machine than a measurement can bear. False where the system does not say."""
    return sample.foreign is not None and sample.foreign > FOREIGN_LIMIT


def describe(case: Case) -> str:
    """A case in a few words."""
    if case.kind == "prefill":
        return f"prefill of {case.size:,}"
    what = "decode" if case.kind == "decode" else f"{case.size} rows"
    return f"{what} at depth {case.depth:,}"
