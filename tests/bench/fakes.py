"""A clock that only moves when told to, and engines made of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edgeinfer.bench.machine import Machine
from edgeinfer.bench.plan import Case, Plan
from edgeinfer.bench.probe import Probe
from edgeinfer.bench.report import Model, Report, build_lines
from edgeinfer.bench.session import Measured, Session
from edgeinfer.bench.subject import Sample


class Clock:
    """Seconds since it was made; ``sleep`` is how they pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeEngine:
    """Answers each case with ``seconds(case)`` after that time has passed; ``foreign`` gives what others took."""

    name: str
    clock: Clock
    seconds: Callable[[Case], float] = lambda case: 0.01 * (1 + case.depth / 1000)
    foreign: Iterable[float | None] = ()
    fail_at: int = -1  # the sample that raises, by number
    error: Exception | None = None
    log: list[tuple[str, Case]] = field(default_factory=list)
    warm_errors: dict[Case, Exception] = field(default_factory=dict)
    probes: int = 0

    def __post_init__(self) -> None:
        self._foreign = iter(self.foreign)

    def probe(self) -> Probe:
        self.probes += 1
        self.clock.sleep(0.5)
        return Probe(0.1, 0.2, 0.3, 100_000_000, 150_000_000, 200_000_000, 0.0)

    def warm(self, case: Case) -> None:
        if case in self.warm_errors:
            raise self.warm_errors[case]

    def sample(self, case: Case) -> Sample:
        if self.error and len(self.log) == self.fail_at:
            raise self.error
        self.log.append((self.name, case))
        seconds = self.seconds(case)
        self.clock.sleep(seconds)
        return Sample(seconds, next(self._foreign, 0.0), seconds)


MACHINE = Machine(
    system="Linux 6.1 x86_64",
    cpu="A processor with a name",
    cores=2,
    logical_cores=4,
    isa=("avx2",),
    memory=8 << 30,
    load=0.1,
    python="3.11.7",
    versions={"edgeinfer": "0.1.0"},
)
MODEL = Model("tiny", "tiny.gguf", "llama", "Q4_1", 135_000_000, 97_000_000)


def run_session(plan: Plan, engines: Iterable[FakeEngine], clock: Clock, probed: Iterable[str] = ()) -> Measured:
    by_name = {engine.name: engine for engine in engines}
    return Session(plan, by_name, probed=frozenset(probed), clock=clock, sleep=clock.sleep).run()


def report_of(measured: Measured, plan: Plan, engines: tuple[str, ...], **failures: str) -> Report:
    lines = build_lines(measured, plan, engines)
    reasons = {name.replace("_", "-"): why for name, why in failures.items()}
    return Report(MODEL, MACHINE, plan, "cpu", engines, reasons, lines, measured.rounds, measured.reruns)
