"""The choice of lengths, the account, and what steps cost: all against figures worked out by hand or by brute force."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgeinfer.speculation.controller import MARGIN, Account, admit
from edgeinfer.speculation.costs import MOST_ROWS, Costs, Terms
from edgeinfer.speculation.drafter import FAINT, HOPEFUL, Draft, Text
from edgeinfer.speculation.pilot import Pilot
from edgeinfer.speculation.speculation import Shared, Source, machine_key
from edgeinfer.speculation.step import Candidate
from tests.speculation.replay import CURVES, INFO, step_cost


def ratios(name: str) -> list[float]:
    cost = step_cost(CURVES[name])
    return [0.0, *(cost(rows) for rows in range(1, MOST_ROWS + 1))]


def draft(*survival: float) -> Draft:
    return Draft([1] * len(survival), survival)


@pytest.mark.parametrize("curve", CURVES)
def test_the_best_of_all_lengths_is_taken(curve: str) -> None:
    """Against trying every combination, for one to three requests; also past a step of the curve."""
    source, table = random.Random(2), ratios(curve)
    for _ in range(60):
        drafts = []
        for _ in range(source.randint(1, 3)):
            decline = source.uniform(0.5, 1)
            drafts.append(draft(*(decline**place for place in range(1, source.randint(2, 8)))))
        sequences = len(drafts) + source.randint(0, 2)
        lengths = admit(drafts, sequences, table)

        def rate(counts: tuple[int, ...], drafts: list[Draft] = drafts, sequences: int = sequences) -> float:
            gained = sum(sum(each.survival[:count]) for each, count in zip(drafts, counts, strict=True))
            return (sequences + gained) / table[sequences + sum(counts)]

        best = max(map(rate, itertools.product(*(range(len(each.tokens) + 1) for each in drafts))))
        if sum(lengths):
            assert rate(tuple(lengths)) == pytest.approx(best)
        else:
            assert best <= sequences / table[sequences] * (1 + MARGIN)


def test_a_plateau_behind_a_step_is_found() -> None:
    """From 9 rows on the cost is flat to 32: a greedy search would stop at 8."""
    long = draft(*(0.99**place for place in range(1, 32)))
    assert admit([long], 1, ratios("m3-max-4bit")) == [31]


def test_no_draft_that_only_breaks_even() -> None:
    table = [0.0, 1.0, *(1 + 0.5 * more for more in range(1, MOST_ROWS))]
    assert admit([draft(0.5, 0.5)], 1, table) == [0]
    assert admit([draft(0.56, 0.1)], 1, table) == [1]
    assert admit([draft(0.56, 0.1)], 1, table, margin=0.1) == [0]
    assert admit([draft(*[1.0] * 63)], MOST_ROWS, table) == [0]


def test_debt_parks_longer_each_time_and_is_forgiven() -> None:
    account = Account()
    lengths = []
    for _ in range(8):
        while not account.parked:
            account.settle(1, 1.8)
            account.passed(1)
        lengths.append(account.parked)
        account.passed(account.parked)
        assert not account.parked
    assert lengths == [16 - 1, 32 - 1, 64 - 1, 128 - 1, 256 - 1, 512 - 1, 1024 - 1, 1024 - 1]
    account.passed(4000)
    assert account.margin == MARGIN
    assert abs(account.debt) < 0.1


def test_debt_makes_careful_and_gains_pay_it_off() -> None:
    account = Account()
    account.settle(1, 2.5)
    assert account.margin > MARGIN
    assert not account.parked
    account.settle(8, 2.0)
    assert account.margin == MARGIN
    account.settle(1000, 100)
    assert account.debt == -Account._SAVED
    for _ in range(20):
        account.settle(1, 2)
    assert account.parked


def learned(slope: float = 0.5) -> Costs:
    costs = Costs(slope)
    for _ in range(5):
        costs.learn_plain(1, 0, 0.01)
    return costs


def test_costs_are_learned_as_ratios() -> None:
    costs = learned()
    assert costs.plain(1, 0) == pytest.approx(0.01)
    assert costs.ratios(0)[3] == pytest.approx(2.0)
    for _ in range(30):
        costs.learn_verify(8, 1, 0, 0.018)
        costs.learn_verify(2, 1, 0, 0.012)
    table = costs.ratios(0)
    assert table[8] == pytest.approx(1.8, rel=0.03)
    assert table[2] == pytest.approx(1.2, rel=0.03)
    assert table[5] == pytest.approx((1.2 + 1.8) / 2, rel=0.03)
    assert 1.8 < table[16] < 1.8 + 8 * 0.5
    assert costs.plain(1, 5000) is None


def test_the_first_steps_after_a_prompt_mislead_nobody() -> None:
    """One waits for the prompt's last part, and the next finds its token computed meanwhile."""
    costs = Costs()
    assert [costs.learn_plain(1, 0, seconds) for seconds in (0.2, 0.0004, 0.004, 0.0041)] == [None] * 4
    assert costs.learn_plain(1, 0, 0.0039) == costs.plain(1, 0) == 0.004


def test_one_outlier_changes_little() -> None:
    costs = learned()
    for _ in range(10):
        costs.learn_verify(8, 1, 0, 0.018)
    before = costs.ratios(0)[8]
    costs.learn_verify(8, 1, 0, 5.0)
    costs.learn_plain(1, 0, 5.0)
    assert costs.ratios(0)[8] <= before * 1.06
    assert costs.plain(1, 0) <= 0.01 * 1.04  # type: ignore[operator]


def test_deeper_texts_have_curves_of_their_own() -> None:
    costs = learned()
    for _ in range(5):
        costs.learn_plain(1, 4096, 0.02)
    for _ in range(30):
        costs.learn_verify(8, 1, 0, 0.018)
        costs.learn_verify(8, 1, 4096, 0.06)
    assert costs.ratios(0)[8] == pytest.approx(1.8, rel=0.03)
    assert costs.ratios(4096)[8] == pytest.approx(3.0, rel=0.03)
    assert costs.ratios(2_000_000)[8] == pytest.approx(3.0, rel=0.03)


def test_measurements_survive_the_process_and_their_damage_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = Shared(INFO, tmp_path)
    for _ in range(30):
        shared.costs[True].learn_plain(1, 0, 0.01)
        shared.costs[True].learn_verify(8, 1, 0, 0.044)
    shared.close()
    file = tmp_path / f"{machine_key(INFO)}.json"
    assert Shared(INFO, tmp_path).costs[True].ratios(0)[8] == pytest.approx(4.4, rel=0.05)
    assert not caplog.records
    good = json.loads(file.read_text())
    fresh = Costs.prior("mlx", "cpu").ratios(0)
    for damaged in (
        "", "{", "[]", "null", "\0", "{}", '{"format": 2}',
        json.dumps({**good, "survival": []}),
        json.dumps({**good, "bubble": "much"}),
        json.dumps({**good, "costs": {"True": {"0": {"8": -1}}, "False": {}}}),
        json.dumps({**good, "costs": {"True": {"x": {"8": 2}}, "False": {}}}),
        json.dumps({**good, "costs": {"True": {"0": 7}, "False": {}}}),
    ):  # fmt: skip
        caplog.clear()
        file.write_text(damaged)
        assert Shared(INFO, tmp_path).costs[True].ratios(0) == fresh
        assert "measuring anew" in caplog.text
    Shared(INFO, tmp_path).close()
    assert Shared(INFO, tmp_path).costs[True].ratios(0) == fresh


class Counting:
    """A drafter that can be glanced at, and how often it was."""

    name = "counting"

    def __init__(self, right: bool = False) -> None:
        self.right = right
        self.seen: list[list[int]] = []
        self.shadows: list[list[int]] = []
        self.terms: list[Terms] = []
        self.worth, self.chance = FAINT, 0.01

    def propose(self, limit: int) -> Draft:
        return draft(*[self.chance] * min(limit, 4))

    def observe(self, tokens: Sequence[int]) -> None:
        self.seen.append(list(tokens))

    def set_terms(self, terms: Terms) -> None:
        self.terms.append(terms)

    def advance(self, tokens: Sequence[int], limit: int, pipelined: bool) -> int:
        self.observe(tokens)
        return self.worth

    def shadow(self, tokens: Sequence[int]) -> int:
        self.shadows.append(list(tokens))
        return len(tokens) if self.right else 0

    def close(self) -> None:
        pass


def counted(shared: Shared, right: bool = False) -> tuple[Pilot, Counting, Callable[[int], None]]:
    """A pilot of a drafter that counts, and what makes plain steps of it."""
    drafter = Counting(right)
    shared.sources = {"counting": Source(lambda text: drafter)}
    pilot = shared.pilot(Text([1, 2, 3]))

    def play(steps: int) -> None:
        for token in range(steps):
            candidate = Candidate(pilot, 99, pipelined=False)
            shared.choose([candidate], depth=0)
            pilot.observe([100 + token], 0, True, 99)
            shared.settle([candidate], 1, 0, 0.01, entered=False, steady=not pilot.draft)

    return pilot, drafter, play


def test_steps_without_hope_ask_for_nothing_and_lose_no_figure() -> None:
    """Costs are learned from several steps at a time; the report counts the last ones too."""
    shared = Shared(INFO)
    pilot, drafter, play = counted(shared)
    play(60)
    assert len(drafter.seen) == 60
    assert len(drafter.terms) == 1
    assert drafter.terms[0].sequences == 1
    assert not pilot.hope
    assert shared.costs[True].plain(1, 0) == pytest.approx(0.01)
    drafter.worth, drafter.chance = HOPEFUL, 0.9
    play(1)
    assert pilot.hope
    shared.choose([Candidate(pilot, 99, pipelined=False)], depth=0)
    assert len(pilot.draft) == 4
    pilot.close([])
    told = pilot.report()
    assert (told.steps, told.tokens) == (61, 60)
    assert pilot._known_seconds == pytest.approx(0.01 * 57)  # all but those before the cost was known
    assert 0 < told.controller < 0.05


def test_a_parked_drafter_looks_at_many_tokens_at_once() -> None:
    pilot, drafter, play = counted(Shared(INFO))
    play(10)
    pilot.account.parked = 100
    seen = len(drafter.seen)
    play(30)
    assert len(drafter.seen) == seen
    assert [len(tokens) for tokens in drafter.shadows] == [8, 8, 8]
    assert pilot.account.parked == 70
    pilot.close([])
    assert sum(map(len, drafter.shadows)) == 30


def test_right_guesses_end_a_parking_early() -> None:
    pilot, drafter, play = counted(Shared(INFO), right=True)
    play(10)
    pilot.account.parked = 100
    play(24)
    assert not pilot.account.parked
    assert pilot.hope
    play(1)
    assert len(drafter.shadows) == 3


def test_a_drafter_that_raises_when_it_is_glanced_at_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    for method in ("advance", "shadow", "set_terms"):
        caplog.clear()
        pilot, drafter, play = counted(Shared(INFO))
        setattr(drafter, method, lambda *_: 1 // 0)
        play(10)
        if method == "shadow":
            pilot.account.parked = 100
        play(20)
        assert "raised ZeroDivisionError" in caplog.text
        assert "raised ZeroDivisionError" in pilot.report().why
        assert not pilot.hope
