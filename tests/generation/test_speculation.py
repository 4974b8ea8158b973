"""Drafts never change what is said: the same tokens, figures and memory with every drafter, on host and device."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation.request import Request
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.speculation.speculation import Shared
from edgeinfer.types import SamplingParams
from tests.generation.chances import DRAFTERS, FILTERS, TEMPERATURES, sigmas
from tests.generation.fakes import END, LETTERS, DeviceTape, FakeTokenizer, Kept, kept_sequences
from tests.speculation.drafters import Eager, Scripted, chance, eager, endless, only, repeating, wrong

TOKENIZER: Any = FakeTokenizer()
VOCAB = len(LETTERS)
BACKENDS = pytest.mark.parametrize("backend_class", [TapeBackend, DeviceTape], ids=["host", "pipelined"])
Guess = Callable[[list[int], int], Sequence[int]]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


COMPUTING = ("mtp", "layer_skip", "diffusion", "draft_model", "draft_model, p/q")
PROMPT = encode("Say it: ")
ANSWER = encode("the cat and the dog and the cat and the dog and the cow")


def knowing(answer: Sequence[int], mistakes: frozenset[int] = frozenset(), length: int = 5) -> Guess:
    """Knows the answer, but for some places."""

    def guess(text: list[int], limit: int) -> Sequence[int]:
        done = len(text) - len(PROMPT)
        known = [*answer, END][done : done + min(limit, length)]
        return [1 if done + place in mistakes else token for place, token in enumerate(known)]

    return guess


GUESSES: dict[str, Guess] = {
    "knows it": knowing(ANSWER),
    "knows most": knowing(ANSWER, frozenset({3, 4, 11, 20, 33})),
    "knows all at once": knowing(ANSWER, length=60),
    "wrong": wrong(VOCAB),
    "repeats": repeating,
    "past the end": endless(END),
    "random": chance(VOCAB),
}
PARAMS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1, seed=5),
    "hot": SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=6),
    "xtc": SamplingParams(temperature=1, xtc_probability=0.5, seed=7),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.2, frequency_penalty=0.3, seed=8),
    "dry": SamplingParams(temperature=0.8, dry_multiplier=0.8, seed=9),
    "mirostat": SamplingParams(temperature=1, mirostat=True, seed=10),
    "bias": SamplingParams(temperature=1, logit_bias={5: 3.0, END: -100.0}, seed=11),
    "logprobs": SamplingParams(temperature=0.9, logprobs=3, seed=12),
}


def serve(
    backend: TapeBackend, requests: Sequence[Request], shared: Shared | None
) -> tuple[list[Kept], list[list[int]]]:
    """The outlets of requests that are served together, and what the closed sequences hold."""
    scheduler = Scheduler(backend, TOKENIZER, speculation=shared)
    outlets = [Kept() for _ in requests]
    for request, outlet in zip(requests, outlets, strict=True):
        scheduler.add(request, outlet)
    while scheduler.tick():
        pass
    return outlets, sorted(kept_sequences(backend))


def said(outlet: Kept) -> tuple[Any, ...]:
    """All of an answer but its times and what was drafted."""
    assert outlet.error is None
    logprobs = tuple(each for event in outlet.events[:-1] for each in event.logprobs)  # type: ignore[union-attr]
    finished = outlet.finished
    usage = (finished.usage.prompt, finished.usage.completion)
    return outlet.text, tuple(outlet.ids), logprobs, finished.finish_reason, finished.stop, usage


@BACKENDS
@pytest.mark.parametrize("guess", GUESSES.values(), ids=GUESSES)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_draft_changes_nothing_but_the_steps(backend_class: Any, guess: Guess, params: SamplingParams) -> None:
    """On noise, where nearly every draft fails, and on a text that the drafter may know."""
    for tape in (None, ANSWER):
        request = Request(PROMPT, replace(params, max_tokens=40))
        (plain,), kept = serve(backend_class(tape, vocab_size=VOCAB), [request], None)
        backend = backend_class(tape, vocab_size=VOCAB)
        (drafted,), kept_drafted = serve(backend, [request], eager(backend.info, guess))
        assert said(drafted) == said(plain)
        assert kept_drafted == kept


@BACKENDS
@pytest.mark.parametrize("stop", ["", "dog", "cat and", "t", "og and the co"])
@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 54, 55, 56, 200])
def test_ends_inside_a_draft(backend_class: Any, stop: str, limit: int) -> None:
    """End tokens, stop strings and limits cut where they would have, and nothing after them is remembered."""
    request = Request(PROMPT, SamplingParams(temperature=0, max_tokens=limit, stop=stop or ()))
    (plain,), kept = serve(backend_class(ANSWER, vocab_size=VOCAB), [request], None)
    for length in (1, 5, 60):
        backend = backend_class(ANSWER, vocab_size=VOCAB)
        (drafted,), kept_drafted = serve(backend, [request], eager(backend.info, knowing(ANSWER, length=length)))
        assert said(drafted) == said(plain)
        assert kept_drafted == kept


@BACKENDS
def test_a_known_answer_takes_few_steps(backend_class: Any) -> None:
    backend = backend_class(ANSWER, vocab_size=VOCAB)
    (outlet,), _ = serve(
        backend, [Request(PROMPT, SamplingParams(temperature=0))], eager(backend.info, GUESSES["knows it"])
    )
    made = len(ANSWER) + 1
    assert backend.steps <= 3 + made / 6
    usage, told = outlet.finished.usage, outlet.finished.speculation
    assert usage.accepted == usage.drafted >= made - backend.steps - 1
    assert told.tokens / told.steps > 5
    assert told.why == ""
    assert [event.step for event in outlet.events[:-1]] == sorted(event.step for event in outlet.events[:-1])  # type: ignore[union-attr]
    assert backend.steps - outlet.events[-2].step in (0, 1)  # type: ignore[union-attr]  # the end may take one of its own


@BACKENDS
def test_requests_draft_together_and_alone_alike(backend_class: Any) -> None:
    """Some draft, some may not, one comes late in the queue; each says what it says alone."""
    requests = [
        Request(PROMPT, SamplingParams(temperature=0), speculation="off" if index % 3 == 2 else "auto")
        for index in range(4)
    ] + [Request(encode("Other: "), params) for params in PARAMS.values()]
    requests = [replace(each, params=replace(each.params, max_tokens=30)) for each in requests]
    alone = [said(serve(backend_class(None, vocab_size=VOCAB), [request], None)[0][0]) for request in requests]
    for guess in (GUESSES["random"], repeating):
        backend = backend_class(None, vocab_size=VOCAB)
        together, _ = serve(backend, requests, eager(backend.info, guess))
        assert [said(outlet) for outlet in together] == alone
        assert together[2].finished.usage.drafted == 0
        assert together[2].finished.speculation.why == "off"


BAD: dict[str, tuple[Guess, str]] = {
    "raises": (lambda text, limit: [1 // 0], "raised ZeroDivisionError"),
    "outside": (lambda text, limit: [VOCAB], "outside the vocabulary"),
    "negative": (lambda text, limit: [-1], "outside the vocabulary"),
    "too many": (lambda text, limit: [1] * (limit + 1), "tokens with"),
}


@BACKENDS
@pytest.mark.parametrize(("guess", "why"), BAD.values(), ids=BAD)
def test_a_bad_drafter_is_dropped_and_named(
    backend_class: Any, guess: Guess, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = backend_class(ANSWER, vocab_size=VOCAB)
    (outlet,), _ = serve(backend, [Request(PROMPT, SamplingParams(temperature=0))], eager(backend.info, guess))
    assert outlet.ids == ANSWER
    assert why in outlet.finished.speculation.why
    assert len(caplog.records) == 1
    assert why in caplog.text


def test_a_drafter_that_raises_while_it_watches_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    class Blind(Scripted):
        def observe(self, tokens: Sequence[int]) -> None:
            raise OSError("no eyes")

        def close(self) -> None:
            raise AssertionError("a dropped drafter is not closed")

    backend = TapeBackend(ANSWER, vocab_size=VOCAB)
    shared = only(backend.info, lambda text: Blind(text.prompt, repeating), Eager)
    (outlet,), _ = serve(backend, [Request(PROMPT, SamplingParams(temperature=0))], shared)
    assert outlet.ids == ANSWER
    assert "raised OSError: no eyes" in caplog.text


def test_broken_logits_in_a_verified_row_fail_the_request() -> None:
    for backend_class in (TapeBackend, DeviceTape):
        backend = backend_class(ANSWER, vocab_size=VOCAB, faults={4: float("nan")})
        scheduler = Scheduler(backend, TOKENIZER, speculation=eager(backend.info, GUESSES["knows it"]))
        outlet = Kept()
        scheduler.add(Request(PROMPT, SamplingParams(temperature=0)), outlet)
        while scheduler.tick():
            pass
        assert outlet.finished.finish_reason == "error"
        assert "not finite" in str(outlet.error)
        assert backend.open_sequences == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_distribution_is_the_models(drafter: str, temperature: float) -> None:
    """A part of what ``chances`` plays in full: 2,500 tokens, against the exact distribution of a filter."""
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}")
    name = random.Random(seed).choice(list(FILTERS))
    distance, accepted = sigmas(drafter, temperature, name, 2500)
    assert distance < 4.5
    assert accepted > 0 or temperature == 0 or drafter not in COMPUTING
