"""What a drafter's own certainty is worth, and what its drafts cost: both learned."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from edgeinfer.speculation.certainty import Learned, Price
from edgeinfer.speculation.controller import MARGIN, admit, best_rate
from edgeinfer.speculation.drafter import Draft
from tests.speculation.replay import CURVES, step_cost

RATIOS = [0.0, *(step_cost(CURVES["native"])(rows) for rows in range(1, 65))]


def test_chances_follow_what_came_true_and_not_what_was_felt() -> None:
    """A drafter that says 0.9 and is right in one of two places; one that says 0.4 and always is."""
    source, learned = random.Random(3), Learned()
    for _ in range(600):
        learned.learn([0.9, 0.9], 0 if source.random() < 0.5 else 1 if source.random() < 0.5 else 2)
        learned.learn([0.4], 1)
    assert learned.survival([0.9, 0.9]) == pytest.approx([0.5, 0.25], abs=0.07)
    assert learned.survival([0.4, 0.9])[0] > 0.97
    again = Learned()
    again.restore(learned.to_json())
    assert again.survival([0.9, 0.4, 0.1]) == pytest.approx(learned.survival([0.9, 0.4, 0.1]), abs=1e-4)


def test_a_useless_drafter_is_tried_again_ever_more_seldom() -> None:
    learned = Learned()
    for _ in range(50):
        learned.learn([0.5, 0.5], 0)
    tries = []
    for token in range(5000):
        survival = learned.forecast(4)
        assert len(survival) in (1, 4)
        if survival[0] > 0.5:
            tries.append(token)
            learned.learn([0.5], 0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert 4 <= len(tries) <= 9
    assert max(gaps) > 1000
    learned.forecast(0)
    assert learned.forecast(0) == []


@pytest.mark.parametrize("rows", [None, [], [[], []], [[[2, 1]] * 6, [[0.5, 1]] * 8], "ab", [[["x", 1]] * 6, []]])
def test_a_damaged_table_is_refused(rows: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Learned().restore(rows)


def test_prices_are_learned_for_the_first_token_and_for_more() -> None:
    price, source = Price(0.5, 0.5), random.Random(5)
    assert price.of(3, plain=0.01) == [0.5, 0.5, 0.5]
    assert price.of(0, plain=0.01) == []
    for _ in range(400):
        count = source.randint(1, 6)
        price.learn(count, 0.004 + 0.001 * (count - 1), plain=0.01)
    assert price.of(3, plain=0.01) == pytest.approx([0.4, 0.1, 0.1], rel=0.05)
    price.learn(1, 30.0, plain=0.01)
    assert price.of(1, plain=0.01)[0] < 0.6


def test_a_price_shortens_a_draft_as_trying_all_lengths_would() -> None:
    source = random.Random(6)
    for _ in range(60):
        drafts = []
        for _ in range(source.randint(1, 3)):
            decline, count = source.uniform(0.5, 1), source.randint(1, 6)
            prices = [source.uniform(0, 0.5)] * count if source.random() < 0.6 else []
            drafts.append(Draft((), [decline**place for place in range(1, count + 1)], prices=prices))
        lengths = admit(drafts, len(drafts), RATIOS)

        def rate(counts: tuple[int, ...], drafts: list[Draft] = drafts) -> float:
            gained = sum(sum(each.survival[:count]) for each, count in zip(drafts, counts, strict=True))
            price = sum(sum(each.prices[:count]) for each, count in zip(drafts, counts, strict=True))
            return (len(drafts) + gained) / (RATIOS[len(drafts) + sum(counts)] + price)

        every = list(itertools.product(*(range(len(each.survival) + 1) for each in drafts)))
        none = len(drafts) / RATIOS[len(drafts)]
        if sum(lengths):
            assert rate(tuple(lengths)) > none * (1 + MARGIN)
        if len(drafts) == 1:
            best = max(map(rate, every))
            assert rate(tuple(lengths)) == pytest.approx(best) if sum(lengths) else best <= none * (1 + MARGIN)
            assert best_rate(drafts[0], RATIOS) == pytest.approx(max(map(rate, every[1:])))
