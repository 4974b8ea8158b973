"""Figures and ratios of a report, and its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeinfer.bench.plan import Case, Plan
from edgeinfer.bench.remote import EngineFailed
from edgeinfer.bench.report import Figure, Line, Report, failures_by_engine
from edgeinfer.bench.session import Cell, Measured
from edgeinfer.bench.statistics import Spread, ratio
from tests.bench.fakes import Clock, FakeEngine, report_of, run_session

PLAN = Plan(depths=(0, 64), prefill=(32,), rows=(1, 4), rounds=3, seed=3, threads=2)
ENGINES = ("edgeinfer", "llama-cpp", "mlx-lm")


def full_report() -> Report:
    """Ours takes 10 ms, llama.cpp 20 with flash attention and 25 without (the other way round when deep)."""
    clock = Clock()
    flash = FakeEngine("llama-cpp flash", clock, seconds=lambda case: 0.03 if case.depth else 0.02)
    plain = FakeEngine("llama-cpp plain", clock, seconds=lambda case: 0.025)
    ours = [FakeEngine(name, clock, seconds=lambda case: 0.01) for name in ("edgeinfer", "llm.generate")]
    mlx_lm = FakeEngine("mlx-lm", clock, fail_at=0, error=EngineFailed("killed"))
    measured = run_session(PLAN, [*ours, flash, plain, mlx_lm], clock, ["edgeinfer", "llama-cpp flash", "mlx-lm"])
    assert failures_by_engine(measured, ENGINES) == {"mlx-lm": "killed"}
    return report_of(measured, PLAN, ENGINES, mlx_lm="killed")


def line(report: Report, section: str, label: str) -> Line:
    return next(each for each in report.lines if (each.section, each.label.strip()) == (section, label))


def test_spread() -> None:
    spread = Spread.of([4.0, 1.0, 2.0])
    assert (spread.median, spread.low, spread.high, spread.count) == (2.0, 1.0, 4.0, 3)
    assert spread.percent == 75.0


def test_ratios_are_taken_round_by_round() -> None:
    found = ratio({0: 10.0, 1: 100.0, 2: 30.0, 3: 7.0}, {0: 5.0, 1: 50.0, 2: 10.0, 9: 1.0})
    assert found == Spread(2.0, 2.0, 3.0, 3), "a round that was slow for both sides is no outlier"
    assert ratio({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(("better", "expected"), [("higher", 0.25), ("lower", 4.0)])
def test_a_ratio_is_how_many_times_better_ours_is(better: Any, expected: float) -> None:
    figures = {"edgeinfer": Figure({0: 10.0}), "llama-cpp": Figure({0: 40.0})}
    found = Line("decode", "", "", better, figures).ratio("llama-cpp")
    assert found is not None
    assert found.median == expected


def test_the_better_kind_of_attention_counts_case_by_case() -> None:
    report = full_report()
    shallow = line(report, "decode", "depth 0").figures["llama-cpp"]
    deep = line(report, "decode", "depth 64").figures["llama-cpp"]
    assert (shallow.variant, deep.variant) == ("flash attention", "no flash attention")
    assert shallow.spread == Spread(pytest.approx(50.0), pytest.approx(50.0), pytest.approx(50.0), 3)
    found = line(report, "decode", "depth 64").ratio("llama-cpp")
    assert found is not None
    assert found.median == pytest.approx(2.5)


def test_rates_times_and_costs_have_their_units() -> None:
    report = full_report()
    assert line(report, "prefill", "32 tokens").figures["edgeinfer"].spread.median == pytest.approx(3200)  # type: ignore[union-attr]
    assert line(report, "rows at depth 0", "4 rows").figures["edgeinfer"].spread.median == pytest.approx(10)  # type: ignore[union-attr]
    cost = line(report, "rows at depth 0", "4 over 1")
    assert cost.figures["edgeinfer"].spread.median == pytest.approx(1)  # type: ignore[union-attr]
    assert cost.ratio("llama-cpp") is None
    assert line(report, "memory", "after prompt").figures["edgeinfer"].spread.median == 150  # type: ignore[union-attr]


def test_a_cost_is_the_ratio_of_the_same_round() -> None:
    one, four = Case("rows", 1), Case("rows", 4)
    plan = Plan(depths=(0,), prefill=(), rows=(1, 4))
    cells = {case: Cell() for case in plan.cases}
    cells[one].seconds = {0: 1.0, 1: 10.0, 2: 1.0}
    cells[four].seconds = {0: 2.0, 1: 20.0, 2: 2.5}
    report = report_of(Measured({"edgeinfer": cells}, {}, {}), plan, ("edgeinfer",))
    assert line(report, "rows at depth 0", "4 over 1").figures["edgeinfer"].spread == Spread(2.0, 2.0, 2.5, 3)


def test_json_holds_every_sample_and_reads_back() -> None:
    found = json.loads(json.dumps(full_report().to_json(), allow_nan=False))
    assert set(found) == {"schema", "model", "machine", "settings", "engines", "lines", "reruns", "notes"}
    assert found["schema"] == 1
    assert found["settings"] == {
        "threads": 2,
        "context": PLAN.context,
        "device": "cpu",
        "rounds": 3,
        "seed": 3,
        "quick": False,
    }
    assert found["engines"] == [
        {"name": "edgeinfer", "failed": None},
        {"name": "llama-cpp", "failed": None},
        {"name": "mlx-lm", "failed": "killed"},
    ]
    deep = next(each for each in found["lines"] if each["label"] == "depth 64")
    assert deep["case"] == {"kind": "decode", "size": 64, "depth": 64}
    assert deep["figures"]["edgeinfer"]["samples"] == {"0": 100.0, "1": 100.0, "2": 100.0}
    assert deep["figures"]["mlx-lm"] == {"missing": "killed"}
    assert set(deep["ratios"]) == {"llama-cpp"}
    assert deep["ratios"]["llama-cpp"]["rounds"] == 3
    for each in found["lines"]:
        assert set(each) == {"section", "label", "unit", "better", "case", "figures", "ratios"}
        for figure in each["figures"].values():
            assert set(figure) in ({"missing"}, {"median", "low", "high", "samples", "disturbed", "variant"})
