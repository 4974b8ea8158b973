"""A case on a subject: how much of it is done, what is timed, what is left out. The tape backend tells the time."""

from __future__ import annotations

import pytest

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.bench.busy import Guard, busy_seconds
from edgeinfer.bench.plan import WARM_UP, Case
from edgeinfer.bench.seam import SeamSubject
from edgeinfer.bench.subject import Measurer, NotMeasured, TooSlow
from tests.bench.fakes import Clock

STEP = 0.01
DECODE = Case("decode", 64, 100)


class Recorder(TapeBackend):
    """Remembers how many tokens each step had, and what came before them."""

    def __init__(self, clock: Clock, delay: float = STEP, context: int = 2048) -> None:
        super().__init__(tape=lambda history: len(history) % 64, context=context, delays=delay, sleep=clock.sleep)
        self.seen: list[tuple[int, int, str]] = []

    def step(self, chunks: list[Chunk]) -> list:  # type: ignore[type-arg, override]
        self.seen += [(chunk.state.length, len(chunk.tokens), chunk.rows) for chunk in chunks]
        return super().step(chunks)


def measurer(backend: TapeBackend, clock: Clock, window: float = 0.4, patience: float = 60.0) -> Measurer:
    guard = Guard(lambda: None, lambda: 0.0, clock)
    return Measurer(SeamSubject(backend, clock), window, patience, guard, clock)


def test_decoding_times_whole_steps_after_the_depth_and_the_warm_up() -> None:
    clock = Clock()
    backend = Recorder(clock)
    bench = measurer(backend, clock)
    bench.warm(DECODE)
    backend.seen.clear()
    sample = bench.sample(DECODE)
    assert sample.seconds == pytest.approx(STEP)
    assert backend.seen == [(100 + step, 1, "last") for step in range(WARM_UP + 64)]
    assert bench.sample(DECODE).seconds == pytest.approx(STEP), "a second measurement starts at the same depth"


def test_a_depth_is_computed_once_and_a_deeper_one_starts_from_it() -> None:
    clock = Clock()
    backend = Recorder(clock)
    bench = measurer(backend, clock)
    for case in (Case("decode", 64, 600), Case("decode", 64, 1200), Case("rows", 4, 600)):
        bench.warm(case)
    long = [seen for seen in backend.seen if seen[1] > 32]
    assert long == [(0, 512, "none"), (512, 88, "last"), (600, 512, "none"), (1112, 88, "last")]


def test_rows_are_verified_again_and_again_at_one_depth() -> None:
    clock = Clock()
    backend = Recorder(clock)
    bench = measurer(backend, clock)
    bench.warm(Case("rows", 8, 100))
    backend.seen.clear()
    assert bench.sample(Case("rows", 8, 100)).seconds == pytest.approx(STEP)
    assert backend.seen == [(100, 8, "all")] * 40, "as many as fill the window"


def test_a_prompt_is_cut_as_generation_cuts_it_and_repeated_to_fill_the_window() -> None:
    clock = Clock()
    backend = Recorder(clock, delay=0.05)
    bench = measurer(backend, clock)
    bench.warm(Case("prefill", 1000))
    backend.seen.clear()
    assert bench.sample(Case("prefill", 1000)).seconds == pytest.approx(0.1)
    assert backend.seen == [(0, 512, "none"), (512, 488, "last")] * 4


def test_a_slow_engine_decodes_fewer_tokens() -> None:
    clock = Clock()
    backend = Recorder(clock, delay=0.2)
    bench = measurer(backend, clock)
    bench.warm(Case("decode", 64))
    backend.seen.clear()
    assert bench.sample(Case("decode", 64)).seconds == pytest.approx(0.2)
    assert len(backend.seen) == WARM_UP + 8


def test_what_would_take_too_long_is_left_out_before_it_is_tried() -> None:
    clock = Clock()
    bench = measurer(Recorder(clock, delay=3.2), clock, patience=60.0)  # 0.1 s a token of a prompt
    for case in (Case("prefill", 700), Case("decode", 64, 700), Case("rows", 2, 700)):
        before = clock()
        with pytest.raises(TooSlow, match="about 70 s"):
            bench.warm(case)
        assert clock() - before < 10
    bench.warm(Case("prefill", 500))


def test_a_subject_that_only_decodes_says_so() -> None:
    class Decoder(SeamSubject):
        kinds = ("decode",)

    clock = Clock()
    bench = Measurer(Decoder(Recorder(clock), clock), 0.4, 60, Guard(), clock)
    with pytest.raises(NotMeasured):
        bench.warm(Case("rows", 2))


def test_foreign_load_is_what_is_busy_beyond_ourselves() -> None:
    busy, own, clock = iter([100.0, 103.0]), iter([7.0, 8.5]), iter([0.0, 2.0])
    guard = Guard(lambda: next(busy), lambda: next(own), lambda: next(clock))
    guard.start()
    assert guard.stop() == pytest.approx(0.75)


def test_more_own_time_than_busy_time_is_no_foreign_load() -> None:
    busy, own, clock = iter([100.0, 100.0]), iter([0.0, 0.4]), iter([0.0, 1.0])
    guard = Guard(lambda: next(busy), lambda: next(own), lambda: next(clock))
    guard.start()
    assert guard.stop() == 0.0


def test_a_system_that_does_not_say_is_unknown_not_quiet() -> None:
    guard = Guard(lambda: None, lambda: 0.0, lambda: 0.0)
    guard.start()
    assert guard.stop() is None


def test_busy_seconds_of_this_machine_only_grow() -> None:
    first = busy_seconds()
    if first is None:
        pytest.skip("no /proc/stat here")
    sum(range(3_000_000))
    second = busy_seconds()
    assert second is not None
    assert 0 < first <= second
