"""Rounds: who is measured when, what is measured again, and who drops out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgeinfer.bench.plan import Case, Plan
from edgeinfer.bench.remote import CaseSkipped, EngineFailed
from edgeinfer.bench.session import RERUNS, Session, Step
from tests.bench.fakes import Clock, FakeEngine, run_session

PLAN = Plan(depths=(0, 64), prefill=(32,), rows=(1, 4), rounds=4, seed=7)


def pair(clock: Clock) -> tuple[list[tuple[str, Case]], list[FakeEngine]]:
    """Two engines that write one log."""
    log: list[tuple[str, Case]] = []
    return log, [FakeEngine(name, clock, log=log) for name in ("ours", "theirs")]


def test_engines_take_turns_within_every_case_of_every_round() -> None:
    log, engines = pair(Clock())
    run_session(PLAN, engines, engines[0].clock)
    assert len(log) == 2 * len(PLAN.cases) * PLAN.rounds
    for first, second in zip(log[::2], log[1::2], strict=True):
        assert first[1] == second[1]
        assert {first[0], second[0]} == {"ours", "theirs"}
    size = 2 * len(PLAN.cases)
    rounds = [log[start : start + size] for start in range(0, len(log), size)]
    assert all({case for _, case in one} == set(PLAN.cases) for one in rounds)
    assert any(first != second for first, second in pairwise(rounds)), "the order changes from round to round"
    assert {first[0] for first in log[::2]} == {"ours", "theirs"}, "either may come first"


def test_the_seed_sets_the_order() -> None:
    orders = []
    for seed in (1, 1, 2):
        log, engines = pair(Clock())
        run_session(Plan(**{**_fields(PLAN), "seed": seed}), engines, engines[0].clock)
        orders.append(log)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def _fields(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in ("depths", "prefill", "rows", "rounds")}


ONE = Plan(depths=(0,), prefill=(), rows=(), rounds=1)
CASE = ONE.cases[0]


def test_a_disturbed_measurement_is_made_again() -> None:
    clock = Clock()
    engine = FakeEngine("ours", clock, foreign=[0.9, 0.3, 0.25])
    measured = run_session(ONE, [engine], clock)
    assert len(engine.log) == 3
    assert measured.reruns == 2
    assert not measured.cells["ours"][CASE].disturbed


def test_what_stays_disturbed_is_kept_with_a_flag_the_quietest_of_all() -> None:
    clock = Clock()
    seconds = iter([0.06, 0.05, 0.04, 0.03, 0.02, 0.01])
    foreign = [0.9, 0.8, 0.3, 0.7, 0.6, 0.5]
    engine = FakeEngine("ours", clock, seconds=lambda case: next(seconds), foreign=foreign)
    cell = run_session(ONE, [engine], clock).cells["ours"][CASE]
    assert len(engine.log) == 1 + RERUNS
    assert cell.seconds == {0: 0.04}
    assert cell.disturbed == {0}


def test_a_machine_that_is_never_quiet_is_not_waited_for() -> None:
    clock = Clock()
    engine = FakeEngine("ours", clock, seconds=lambda case: 1.0, foreign=[0.9] * 99)
    plan = Plan(depths=(0,), prefill=(), rows=(), rounds=8, reruns=12.0)
    measured = run_session(plan, [engine], clock)
    assert measured.reruns == 5 + 5 + 3
    assert measured.cells["ours"][CASE].disturbed == set(range(8))


def test_where_the_system_does_not_say_nothing_is_made_again() -> None:
    clock = Clock()
    engine = FakeEngine("ours", clock, foreign=[None] * 9)
    measured = run_session(ONE, [engine], clock)
    assert len(engine.log) == 1
    assert not measured.cells["ours"][CASE].disturbed


@pytest.mark.parametrize("at", [0, 5])
def test_an_engine_that_fails_drops_out_and_the_others_go_on(at: int) -> None:
    clock = Clock()
    bad = FakeEngine("bad", clock, fail_at=at, error=EngineFailed("killed by the system"))
    good = FakeEngine("good", clock)
    measured = run_session(PLAN, [bad, good], clock)
    assert measured.failures == {"bad": "killed by the system"}
    assert len(good.log) == len(PLAN.cases) * PLAN.rounds
    assert len(bad.log) == at


def test_a_skipped_case_says_why_and_leaves_the_others() -> None:
    clock = Clock()
    skipped = PLAN.cases[0]
    engine = FakeEngine("ours", clock, warm_errors={skipped: CaseSkipped("too slow")})
    cells = run_session(PLAN, [engine], clock).cells["ours"]
    assert cells[skipped].skipped == "too slow"
    assert not cells[skipped].seconds
    assert all(len(cells[case].seconds) == PLAN.rounds for case in PLAN.cases[1:])


def test_a_case_that_used_up_the_patience_gets_no_more_rounds() -> None:
    clock = Clock()
    slow = FakeEngine("slow", clock, seconds=lambda case: 40.0)
    quick = FakeEngine("quick", clock)
    cells = run_session(Plan(depths=(0,), prefill=(), rows=(), rounds=5, patience=60), [slow, quick], clock).cells
    assert list(cells["slow"][CASE].seconds) == [0, 1]
    assert list(cells["quick"][CASE].seconds) == [0, 1, 2, 3, 4]


def test_no_round_starts_after_the_limit_but_the_first() -> None:
    clock = Clock()
    engine = FakeEngine("ours", clock, seconds=lambda case: 6.0)
    plan = Plan(depths=(0,), prefill=(), rows=(), rounds=9, limit=10.0)
    assert run_session(plan, [engine], clock).rounds == 2
    assert run_session(Plan(depths=(0,), prefill=(), rows=(), rounds=9, limit=0.0), [engine], clock).rounds == 1


def test_loading_is_probed_once_a_round_for_those_that_are_named() -> None:
    clock = Clock()
    _, engines = pair(clock)
    measured = run_session(PLAN, engines, clock, probed=["ours"])
    assert [engine.probes for engine in engines] == [PLAN.rounds, 0]
    assert list(measured.probes["ours"]) == list(range(PLAN.rounds))


def test_steps_count_up_to_their_total() -> None:
    clock = Clock()
    _, engines = pair(clock)
    steps: list[Step] = []
    by_name = {engine.name: engine for engine in engines}
    Session(PLAN, by_name, probed=frozenset({"ours"}), on_step=steps.append, clock=clock, sleep=clock.sleep).run()
    done = [step.done for step in steps]
    assert done == list(range(len(steps)))
    assert steps[-1].done == steps[-1].total
