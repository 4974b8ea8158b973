"""Drafts never change what is said: the same tokens, figures and memory with every drafter, on host and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation import sampling
from edgeinfer.generation.request import Request
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.draft_model import ModelDrafter
from edgeinfer.speculation.drafter import Drafter, Text
from edgeinfer.speculation.speculation import Shared
from edgeinfer.types import SamplingParams
from tests.generation.fakes import END, LETTERS, DeviceTape, FakeTokenizer, Kept, kept_sequences
from tests.speculation.drafters import Eager, Scripted, chance, eager, endless, only, repeating, wrong

TOKENIZER: Any = FakeTokenizer()
VOCAB = len(LETTERS)
BACKENDS = pytest.mark.parametrize("backend_class", [TapeBackend, DeviceTape], ids=["host", "pipelined"])
Guess = Callable[[list[int], int], Sequence[int]]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


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


class Markov(TapeBackend):
    """Logits that depend on the last token alone: a model whose distribution is known."""

    table = np.random.default_rng(3).normal(0, 1.5, (16, 16)).astype(np.float32)

    def _rows(self, chunk: Chunk, new: Any) -> Any:
        return self.table[new[len(new) - {"none": 0, "last": 1, "all": len(new)}[chunk.rows] :]]


class Similar(Markov):
    """Nearly the same model, to draft for the first."""

    table = Markov.table + np.random.default_rng(4).normal(0, 0.7, (16, 16)).astype(np.float32)


def second(info: Any, sampled: bool) -> Shared:
    """A second model drafts, as many tokens as it forecasts."""
    draft, confidence = Similar(vocab_size=16, context=info.context), Learned()
    make: Callable[[Text], Drafter] = lambda text: ModelDrafter("second", draft, text, confidence, sampled=sampled)  # noqa: E731
    shared: Shared = only(info, make, Eager, price=(0.1, 0.1))
    return shared


DRAFTERS: dict[str, Callable[[Any], Shared]] = {
    "second model": lambda info: second(info, sampled=False),
    "second model, drawing": lambda info: second(info, sampled=True),
    "suffix": lambda info: Shared(info),
    "wrong": lambda info: eager(info, wrong(16)),
    "repeats": lambda info: eager(info, lambda text, limit: [text[-1]] * min(limit, 4)),
    "past the end": lambda info: eager(info, endless(0)),
    "random": lambda info: eager(info, chance(16)),
}
FILTERS: tuple[dict[str, float], ...] = (
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.8},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 1.2},
)


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_the_distribution_is_the_models(make: Callable[[Any], Shared], temperature: float) -> None:
    """2,500 tokens for each drafter, temperature and filter, 280,000 in all: chi-square against the exact one."""
    count = 2500
    for seed, options in enumerate(FILTERS):
        params = SamplingParams(
            max_tokens=count,
            temperature=temperature,
            seed=seed,
            ignore_eos=True,
            **options,  # type: ignore[arg-type]
        )
        backend = Markov(vocab_size=16, context=count + 2)
        (outlet,), _ = serve(backend, [Request([1], params)], make(backend.info))
        ids = np.array([1, *outlet.ids])
        assert len(ids) == count + 1
        seen = np.zeros((16, 16))
        np.add.at(seen, (ids[:-1], ids[1:]), 1)
        if temperature == 0:
            assert all(seen[token].argmax() == Markov.table[token].argmax() for token in np.flatnonzero(seen.sum(1)))
            continue
        expected = np.stack([_exact(Markov.table[token], params) for token in range(16)]) * seen.sum(1, keepdims=True)
        assert not seen[expected == 0].any()
        usual = expected >= 5
        square = ((seen - expected)[usual] ** 2 / expected[usual]).sum()
        freedom = usual.sum() - 16
        assert square < freedom + 4.5 * np.sqrt(2 * freedom), (seed, square, freedom)


def _exact(row: Any, params: SamplingParams) -> Any:
    best, ids = sampling.candidates(np, row, params, 0, 0)
    chances = np.zeros(16)
    chances[ids] = sampling.softmax(np, best)
    return chances
