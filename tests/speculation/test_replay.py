"""Known answers played through drafter and controller at stored costs: how much faster, and never slower."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.formats.gguf import open_gguf
from edgeinfer.speculation.speculation import Shared
from edgeinfer.speculation.store import OutputStore
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.speculation.replay import CURVES, INFO, Played, play, step_cost
from tests.speculation.tasks import SETS, Task

pytestmark = pytest.mark.real_model  # its tokenizer alone

GOALS = {
    "native": {"rewrite": 4.2, "edits": 2.4, "extraction": 1.8, "quoting": 1.4, "prose": 1.03},
    "llama.cpp": {"rewrite": 1.9, "edits": 1.3, "extraction": 1.2, "quoting": 1.1, "prose": 1.0},
    "m4-pro-8bit": {"rewrite": 4.5, "edits": 2.5, "extraction": 1.8, "quoting": 1.35, "prose": 1.0},
    "m3-max-4bit": {"rewrite": 4.0, "edits": 2.1, "extraction": 1.7, "quoting": 1.3, "prose": 1.0},
}
DOCUMENTS = 10


@pytest.fixture(scope="module")
def encode(smollm2_path: Path) -> Callable[[Task], tuple[list[int], list[int]]]:
    with open_gguf(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)
    return lambda task: (tokenizer.encode(task[0]), tokenizer.encode(task[1]))


def shared_for(curve: str) -> Shared:
    return Shared(replace(INFO, backend="llama.cpp") if curve == "llama.cpp" else INFO)


@pytest.mark.parametrize("curve", GOALS)
@pytest.mark.parametrize("name", SETS)
def test_gains_and_the_worst_window(
    encode: Callable[[Task], tuple[list[int], list[int]]], curve: str, name: str
) -> None:
    source, shared, played = random.Random(7), shared_for(curve), Played()
    for _ in range(DOCUMENTS):
        shared.store = OutputStore()  # the stored sentences come again and again
        play(shared, *encode(SETS[name](source)), step_cost(CURVES[curve]), played)
    assert played.speedup >= GOALS[curve][name], f"{played.speedup:.2f} at {played.accepted} of {played.drafted}"
    assert played.worst() >= 0.98


def test_a_repeated_job_gets_faster(encode: Callable[[Task], tuple[list[int], list[int]]]) -> None:
    """Ten rounds of one kind of job, whose answers have as much in common as reports made each day."""
    source, shared = random.Random(3), Shared(INFO)
    rounds = []
    for number in range(10):
        prompt, _ = SETS["prose"](source)
        body = [f"Day {number}, site {site}: {source.randint(10, 99)} units passed, " for site in ("A", "B", "C")]
        report = "".join(
            f"{line}the line was inspected and no fault was found by the shift that was on duty.\n" for line in body
        )
        played = Played()
        play(shared, *encode((prompt, report)), step_cost(CURVES["native"]), played)
        rounds.append(played.speedup)
    assert rounds[-1] >= 1.3 * rounds[0], rounds


def test_hiccups_of_the_machine_do_not_park(encode: Callable[[Task], tuple[list[int], list[int]]]) -> None:
    """One step in 25 takes twenty times as long, drafting or not."""
    task = encode(SETS["rewrite"](random.Random(9)))
    calm, jumpy = Played(), Played()
    play(Shared(INFO), *task, step_cost(CURVES["native"]), calm)
    slow = [random.Random(token).random() < 0.04 for token in range(len(task[1]))]
    play(Shared(INFO), *task, step_cost(CURVES["native"]), jumpy, lambda token: 20.0 if slow[token] else 1.0)
    assert jumpy.steps <= 1.15 * calm.steps


def test_a_busy_spell_neither_parks_for_good_nor_costs_more_than_two_percent(
    encode: Callable[[Task], tuple[list[int], list[int]]],
) -> None:
    """Another program doubles every step's time for 50 tokens: in prose, and in an answer that drafts carry."""

    def slowdown(token: int) -> float:
        return 2.0 if 100 <= token < 150 else 1.0

    for name, floor in (("prose", 0.98), ("rewrite", 2.5)):
        shared, calm, busy = Shared(INFO), Played(), Played()
        task = encode(SETS[name](random.Random(9)))
        play(Shared(INFO), *task, step_cost(CURVES["native"]), calm)
        play(shared, *task, step_cost(CURVES["native"]), busy, slowdown)
        undisturbed = [time / slowdown(place) for place, time in enumerate(busy.times)]
        assert len(undisturbed) / sum(undisturbed) >= max(floor, 0.9 * calm.speedup)
