"""A budget of thoughts: closed for the model in time, whatever drafts or pipelines were on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation.reasoning import Reasoning
from edgeinfer.generation.request import Request
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.types import SamplingParams
from tests.generation.fakes import END, LETTERS, DeviceTape, FakeTokenizer, Kept, kept_sequences, thoughts_of
from tests.speculation.drafters import eager

TOKENIZER: Any = FakeTokenizer([*LETTERS, b"<think>", b"</think>"])
VOCAB = len(LETTERS) + 2
PROMPT = TOKENIZER.encode("Say it: ")
OPEN, CLOSE = TOKENIZER.encode("<think></think>")
GREEDY = SamplingParams(temperature=0)
Make = Callable[..., TapeBackend]


def endless_thinker(tokens: Sequence[int]) -> int:
    """Thinks without end until its thoughts are closed for it; then it answers "Yes."."""
    said = list(tokens[len(PROMPT) :])
    if CLOSE not in said:
        return TOKENIZER.encode("ab")[len(said) % 2] if said else OPEN
    place = len(said) - said.index(CLOSE) - 3
    return TOKENIZER.encode("Yes.")[place] if place < 4 else END


def foreseeing(text: list[int], limit: int) -> Sequence[int]:
    """Drafts what the thinker would say, past the end of its budget too."""
    drafted: list[int] = []
    while len(drafted) < min(limit, 5):
        drafted.append(endless_thinker([*text, *drafted]))
    return drafted


def serve(backend: TapeBackend, request: Request, speculation: Any = None) -> Kept:
    scheduler, outlet = Scheduler(backend, TOKENIZER, speculation=speculation), Kept()
    scheduler.add(request, outlet)
    while scheduler.tick():
        pass
    return outlet


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("backend_class", [TapeBackend, DeviceTape], ids=["host", "pipelined"])
@pytest.mark.parametrize("budget", [1, 2, 3, 8])
def test_thoughts_end_with_their_budget(backend_class: Make, budget: int, drafts: bool) -> None:
    backend = backend_class(endless_thinker, vocab_size=VOCAB)
    shared = eager(backend.info, foreseeing) if drafts else None
    outlet = serve(backend, Request(PROMPT, GREEDY, reasoning=Reasoning(budget=budget)), shared)
    thoughts = ("ba" * 8)[: budget - 1]
    assert (thoughts_of(outlet.events), outlet.text) == (f"{thoughts}\n".lstrip(), "Yes.")
    assert outlet.ids == TOKENIZER.encode(f"<think>{thoughts}\n</think>\n\nYes.")
    assert outlet.finished.finish_reason == "stop"
    assert bool(outlet.finished.usage.accepted) == drafts
    held = kept_sequences(backend)[-1]
    assert held == [*PROMPT, *outlet.ids][: len(held)]
    assert len(held) >= len(PROMPT) + len(outlet.ids) - 1


def test_thoughts_within_their_budget_are_left_alone() -> None:
    text = "<think>ab</think>Yes."
    backend = TapeBackend(TOKENIZER.encode(text), vocab_size=VOCAB)
    outlet = serve(backend, Request(PROMPT, GREEDY, reasoning=Reasoning(budget=4)))
    assert outlet.ids == TOKENIZER.encode(text)


def test_a_budget_that_meets_the_limit_of_the_answer() -> None:
    backend = TapeBackend(endless_thinker, vocab_size=VOCAB)
    params = SamplingParams(temperature=0, max_tokens=4)
    outlet = serve(backend, Request(PROMPT, params, reasoning=Reasoning(budget=2)))
    assert outlet.finished.finish_reason == "length"
    assert outlet.ids == TOKENIZER.encode("<think>b\n</think>")
