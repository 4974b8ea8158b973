"""The bench's table and bars fit a terminal and leave nothing out."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from edgeinfer.bench.plan import Plan
from edgeinfer.bench.remote import CaseSkipped, EngineFailed
from edgeinfer.bench.report import Report
from edgeinfer.cli.bars import bars
from edgeinfer.cli.bench import make_plan
from edgeinfer.cli.benchtable import number, plots, summary, table_of
from tests.bench.fakes import MODEL, Clock, FakeEngine, report_of, run_session

PLAN = Plan(rounds=3, seed=11, threads=2)
ENGINES = ("edgeinfer", "llama-cpp", "mlx-lm")


def report(foreign: float = 0.0, fail: bool = False) -> Report:
    clock = Clock()
    times = iter([0.0100, 0.0104, 0.0098] * 10_000)
    names = ("edgeinfer", "llm.generate", "llama-cpp flash", "llama-cpp plain", "mlx-lm")
    engines = [FakeEngine(name, clock, lambda case: next(times), foreign=[foreign] * 10_000) for name in names]
    engines[-1].warm_errors = {case: CaseSkipped("left out: slow") for case in PLAN.cases if case.kind == "prefill"}
    if fail:
        engines[-1].fail_at, engines[-1].error = 0, EngineFailed("killed")
    measured = run_session(PLAN, engines, clock, ["edgeinfer", "llama-cpp flash", "mlx-lm"])
    return report_of(measured, PLAN, ENGINES, **({"mlx_lm": "killed"} if fail else {}))


@pytest.mark.parametrize("foreign", [0.0, 0.9])
def test_three_engines_with_all_ratios_fit_80_columns(foreign: float) -> None:
    text = table_of(report(foreign))
    body, _, legend = text.partition("\n\n")
    assert max(map(len, body.splitlines())) <= 80
    assert "…" not in body
    assert ("!: other processes" in legend) == (foreign > 0)
    assert max(map(len, plots(report()).splitlines())) <= 80


def test_every_line_is_there_and_every_gap_has_its_reason() -> None:
    found = report()
    text = table_of(found)
    for line in found.lines:
        assert any(row.startswith(f"  {line.label}") for row in text.splitlines())
    assert "mlx-lm, prefill 128 tokens; prefill 512 tokens; prefill 2,048 tokens: left out: slow" in text
    assert "mlx-lm: killed" in table_of(report(fail=True))


def test_the_summary_names_machine_seed_and_rounds_and_commands_no_terminal() -> None:
    found = replace(report(), model=replace(MODEL, name="evil\x1b[2J\nname"))
    text = summary(found)
    assert "\x1b" not in text
    assert "A processor with a name, 2 cores, avx2" in text
    assert "2 threads, 3 rounds, seed 11" in text
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (245.2, "245"),
        (99.96, "100"),
        (12.34, "12.3"),
        (9.999, "10.0"),
        (1.518, "1.52"),
        (0.0344, "0.034"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_bars_are_as_long_as_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    class Utf8:
        encoding = "utf-8"

    monkeypatch.setattr(sys, "stdout", Utf8())
    drawn = bars("title", [("a", [("x", 80.0, "80"), ("y", 40.0, "40"), ("z", 0.001, "0")])], 60).splitlines()
    lengths = [line.count("█") for line in drawn[1:]]
    assert lengths[0] == 2 * lengths[1] > 20
    assert "▏" in drawn[3]
    Utf8.encoding = "ascii"
    drawn = bars("title", [("a", [("x", 80.0, "80"), ("y", 40.0, "40")])], 60).splitlines()
    assert drawn[1].count("#") == 2 * drawn[2].count("#") > 20


def test_a_quick_plan_gives_way_to_what_is_asked_for() -> None:
    plan = make_plan(True, {"depths": "0,64", "rounds": 1})
    assert (plan.depths, plan.rounds, plan.threads, plan.quick) == ((0, 64), 1, 2, True)
    assert make_plan(False, {"seed": 3}) == replace(Plan(), seed=3)
