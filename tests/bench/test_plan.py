"""Plans: what they measure, and what they refuse."""

from __future__ import annotations

import pytest

from edgeinfer.bench.plan import QUICK, Case, Plan, checked_peers, parse_lengths
from edgeinfer.errors import BadRequest


def test_the_default_plan_measures_what_the_design_asks_for() -> None:
    cases = Plan().cases
    assert [case.depth for case in cases if case.kind == "decode"] == [0, 1024, 4096]
    assert [case.size for case in cases if case.kind == "prefill"] == [128, 512, 2048]
    rows = [(case.depth, case.size) for case in cases if case.kind == "rows"]
    assert rows == [(depth, count) for depth in (0, 1024) for count in (1, 2, 4, 8, 16)]
    assert len(QUICK.cases) < len(cases) / 2


def test_lengths_are_sorted_and_counted_once() -> None:
    plan = Plan(depths=(64, 0, 64), prefill=(), rows=(4, 1))
    assert (plan.depths, plan.rows) == ((0, 64), (1, 4))


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"depths": (-1,)}, "depths"),
        ({"prefill": (0,)}, "prefill"),
        ({"rows": (0,)}, "rows"),
        ({"rows": (513,)}, "rows"),
        ({"depths": (1 << 21,)}, "depths"),
        ({"rounds": 0}, "rounds"),
        ({"threads": -1}, "threads"),
        ({"depths": (), "prefill": (), "rows": ()}, "depths"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(changes: dict[str, object], parameter: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Plan(**changes)  # type: ignore[arg-type]
    assert caught.value.parameter == parameter
    assert "\n" not in str(caught.value)


def test_a_small_context_drops_defaults_and_refuses_what_was_asked_for() -> None:
    fitted = Plan().within(1024)
    assert (fitted.depths, fitted.prefill) == ((0,), (128, 512))
    assert max(case.tokens for case in fitted.cases) <= 1024
    with pytest.raises(BadRequest, match="context is 1024 tokens") as caught:
        Plan(depths=(0, 1000)).within(1024, frozenset({"depths"}))
    assert caught.value.parameter == "depths"
    assert Plan(depths=(0, 957)).within(1024, frozenset({"depths"})).depths == (0, 957)


def test_the_context_holds_the_deepest_case() -> None:
    assert Plan(depths=(100,), prefill=(), rows=()).context == Case("decode", 64, 100).tokens
    assert Plan(depths=(), prefill=(300,)).context == 300
    assert Plan(depths=(200,), prefill=(), rows=(500,)).context == 700


def test_rows_count_toward_the_context_they_need() -> None:
    fitted = Plan(depths=(0, 400), prefill=(), rows=(1, 256)).within(512)
    assert all(case.tokens <= 512 for case in fitted.cases)


@pytest.mark.parametrize("text", ["", "1,,2", "1;2", "-1", "1.5", "0x10", "١", "999999999"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(BadRequest, match="with commas between"):
        parse_lengths(text, "depths")


def test_lists_and_engines() -> None:
    assert parse_lengths("0, 1024,8", "depths") == (0, 1024, 8)
    assert parse_lengths("none", "depths") == ()
    assert checked_peers(["mlx-lm", "llama-cpp", "mlx-lm"]) == ("mlx-lm", "llama-cpp")
    with pytest.raises(BadRequest, match=r"'llama\.cpp'.*did you mean 'llama-cpp'"):
        checked_peers(["llama.cpp"])
    with pytest.raises(BadRequest, match="expected one of llama-cpp, mlx-lm"):
        checked_peers(["zzz"])
