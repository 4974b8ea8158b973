"""What the suffix drafter proposes, and what it learns from tokens that it did not draft."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgeinfer.speculation.matches import Context, Follower
from edgeinfer.speculation.store import OutputStore, Snapshot
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival, cell_of

SENTENCE = [5, 6, 7, 8, 9, 10, 11, 12]


def drafter(prompt: list[int], store: Snapshot | None = None) -> SuffixDrafter:
    return SuffixDrafter(prompt, Survival.prior().for_text(), store)


def test_copies_from_where_the_end_stood_before() -> None:
    draft = drafter([*SENTENCE, 1, 2, 5, 6, 7]).propose(4)
    assert list(draft.tokens) == [8, 9, 10, 11]
    assert all(0 < later <= chance <= 1 for chance, later in zip(draft.survival, draft.survival[1:], strict=False))
    assert drafter([*SENTENCE, 1, 2, 3]).propose(4).tokens == ()
    assert drafter([3]).propose(4).tokens == ()
    assert drafter([*SENTENCE, 5, 6]).propose(0).tokens == ()


def test_a_copy_that_reaches_the_end_repeats_itself() -> None:
    draft = drafter([1, 2, 3] * 8).propose(7)
    assert list(draft.tokens) == [1, 2, 3, 1, 2, 3, 1]


def test_most_places_win_and_longer_matches_count_alone() -> None:
    votes = [1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 8, 0, 1, 2]
    assert drafter(votes).propose(1).tokens == [8]
    longer = [9, 4, 3, 1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 8, 0, 9, 4, 3, 1, 2]
    assert drafter(longer).propose(1).tokens == [7]


def test_following_token_by_token_finds_what_a_look_up_finds() -> None:
    """The longest match of a follower is the true one, whenever the index holds its place."""
    source = random.Random(4)
    text = [source.randrange(3) for _ in range(400)]
    grown = Context([])
    follower = Follower(grown, 0)
    for end, token in enumerate(text, 1):
        grown.add(token)
        follower.advance(token, grown.tokens)
        for place, length in follower._lengths.items():
            assert text[place - length : place] == text[end - length : end]


def test_the_store_continues_what_the_context_does_not_know() -> None:
    store = OutputStore()
    store.add([90, 91, 92], SENTENCE)
    store.add([90, 91, 92], [20, 21, 22, 23, 24, 25, 26, 27])
    snapshot = store.snapshot()
    assert list(drafter([40, 5, 6, 7], snapshot).propose(9).tokens) == [8, 9, 10, 11, 12]
    assert list(drafter([30, 90, 91, 92], snapshot).propose(3).tokens) == [20, 21, 22]
    late = drafter([40], snapshot)
    late.observe([21, 22, 23])
    assert list(late.propose(2).tokens) == [24, 25]
    assert drafter([40, 5, 6, 7]).propose(9).tokens == ()


def test_a_snapshot_stays_while_the_store_grows() -> None:
    store = OutputStore(capacity=100)
    store.add([], SENTENCE)
    before = store.snapshot()
    follower = drafter([5, 6, 7], before)
    for start in range(100, 400, 10):
        store.add([1, 2, 3], list(range(start, start + 9)))
    assert len(store.snapshot().tokens) <= 100
    assert list(follower.propose(3).tokens) == [8, 9, 10]
    assert 5 not in store.snapshot().tokens


def test_every_token_teaches_whether_drafted_or_not() -> None:
    """Shadow learning: chances follow what comes after matches, and a text hands them on when it closes."""
    shared = Survival.prior()
    cell = cell_of(0, 64, 1, 1)
    for follows, low, high in ((True, 0.985, 1), (False, 0, 0.9)):
        survival = shared.for_text()
        watching = SuffixDrafter(list(range(70)), survival, on_close=shared.fold)
        watching.observe(list(range(66)))
        before = survival.rates[cell]
        for token in range(66, 70):
            watching.propose(1)
            watching.observe([token if follows else 1000 + token])
            if not follows:
                break
        assert (survival.rates[cell] > before) is follows
        watching.close()
        assert low < shared.rates[cell] < high
    assert shared.rates != Survival.prior().rates


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_rate_becomes_the_frequency(share: float) -> None:
    survival = Survival.prior()
    cell = cell_of(1, 3, 4, 3)
    hits = np.random.default_rng(0).random(3000) < share
    for hit in hits:
        survival.learn(cell, bool(hit))
    assert survival.rates[cell] == pytest.approx(share, abs=0.03)


def test_cells_are_apart() -> None:
    cells = {
        cell_of(source, length, *votes)
        for source in (0, 1)
        for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
        for votes in ((1, 1), (4, 4), (4, 3), (4, 1))
    }
    assert len(cells) == 2 * 11 * 4 == len(Survival.prior().rates)
    assert cell_of(0, 500, 1, 1) == cell_of(0, 64, 1, 1)
    assert cell_of(0, 5, 2, 2) == cell_of(0, 4, 7, 7)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"rates": [0.5], "weights": [1.0]},
        {"rates": [2.0] * 88, "weights": [1.0] * 88},
        {"rates": [0.5] * 88, "weights": [float("nan")] * 88},
        {"rates": ["x"] * 88, "weights": [1.0] * 88},
        {"rates": None, "weights": []},
    ],
)
def test_a_damaged_table_is_refused(row: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Survival.from_json(row)
    good = Survival.prior()
    assert Survival.from_json(good.to_json()).rates == pytest.approx(good.rates, abs=1e-5)
