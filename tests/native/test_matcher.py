"""The native matcher: the guesses, chances and counts of speculation/matches.py, to the bit."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from edgeinfer.speculation.controller import MARGIN
from edgeinfer.speculation.costs import MOST_ROWS, Terms
from edgeinfer.speculation.drafter import FAINT, HOPEFUL, NO_GUESS
from edgeinfer.speculation.matches import Matcher
from edgeinfer.speculation.store import OutputStore, Snapshot
from edgeinfer.speculation.survival import Survival
from tests.speculation.replay import CURVES, step_cost


def native_matcher(native: Any, prompt: list[int], survival: Survival, store: Snapshot) -> Any:
    matcher = native.Matcher(prompt, survival.rates, survival.weights, survival.hits, survival.trials)
    matcher.follow(store.tokens, store.order, store.hashes, store.seen)
    return matcher


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 12, 49152])
def test_the_same_drafts_and_lessons(native: Any, vocabulary: int) -> None:
    """Over random texts with copies of themselves and of the store, and guesses right and wrong."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    for _ in range(12):
        outputs = OutputStore()
        stored = [[source.randrange(vocabulary) for _ in range(source.randint(8, 60))] for _ in range(6)]
        for output in stored:
            outputs.add([source.randrange(vocabulary) for _ in range(source.randint(0, 4))], output)
        prompt = [source.randrange(vocabulary) for _ in range(source.randint(0, 80))] + source.choice(stored)
        ours, its = Survival.prior().for_text(), Survival.prior().for_text()
        python, matcher = Matcher(prompt, ours), native_matcher(native, prompt, its, outputs.snapshot())
        python.follow(outputs.snapshot())
        text = list(prompt)
        for _ in range(60):
            limit = source.choice([0, 1, 2, 7, 63])
            draft = python.propose(limit)
            assert matcher.propose(limit) == draft
            fresh = list(draft[0][: source.randint(0, 8)]) if draft and source.random() < 0.7 else []
            if source.random() < 0.3:
                start = source.randrange(len(text))
                fresh += text[start : start + 5]
            fresh.append(source.choice(text) if source.random() < 0.5 else source.randrange(vocabulary))
            python.observe(fresh)
            matcher.observe(fresh)
            text += fresh
        assert its.rates == ours.rates
        assert (its.weights, its.hits, its.trials) == (ours.weights, ours.hits, ours.trials)


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("curve", CURVES)
def test_the_same_hopes(native: Any, curve: str, sequences: int) -> None:
    """Whether a draft may pay, as the controller would have it, and what was guessed while nobody asked."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source, cost = random.Random(seed), step_cost(CURVES[curve])
    ratios = array("d", [0.0, *(cost(rows) for rows in range(1, MOST_ROWS + 1))])
    hopes = set()
    for vocabulary in (3, 12, 200):
        prompt = [source.randrange(vocabulary) for _ in range(80)]
        prompt += prompt[:40]
        ours, its, none = Survival.prior().for_text(), Survival.prior().for_text(), OutputStore().snapshot()
        python, matcher = Matcher(prompt, ours), native_matcher(native, prompt, its, none)
        text = list(prompt)
        for _ in range(150):
            if source.random() < 0.1:
                terms = Terms(ratios, sequences, MARGIN, source.uniform(0, 0.5))
                for each in (python, matcher):
                    each.set_terms(
                        terms.ratios, sequences, terms.margin, terms.bubble, terms.least, terms.least_pipelined
                    )
            fresh = text[-40 : source.choice([-39, -38, -20])] if source.random() < 0.8 else [source.choice(text)]
            if source.random() < 0.2:
                assert matcher.shadow(fresh) == python.shadow(fresh)
            else:
                limit, pipelined = source.choice([0, 1, 2, 7, 63]), source.random() < 0.5
                hope = python.advance(fresh, limit, pipelined)
                assert matcher.advance(fresh, limit, pipelined) == hope
                hopes.add(hope)
            text += fresh
        assert its.rates == ours.rates
        assert (its.weights, its.hits, its.trials) == (ours.weights, ours.hits, ours.trials)
    assert hopes == {NO_GUESS, FAINT, HOPEFUL}


def test_tables_of_another_size_are_refused(native: Any) -> None:
    good, short = Survival.prior(), Survival([0.5], [1.0])
    with pytest.raises(ValueError, match="tables of all cells"):
        native.Matcher([1, 2], good.rates, good.weights, good.hits, short.trials)
    store = OutputStore().snapshot()
    with pytest.raises(ValueError, match="one store"):
        native_matcher(native, [1, 2], good, store).follow(store.tokens, store.order, store.hashes, b"short")
    with pytest.raises(ValueError, match="number of rows"):
        native_matcher(native, [1, 2], good, store).set_terms(array("d", [0.0, 1.0]), 1, 0.0, 0.0, 0.0, 0.0)
