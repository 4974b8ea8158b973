"""Requests through the scheduler on the tape: the right tokens, alone or together, on the host or pipelined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import BadRequest, ContextLimit, EdgeInferError, EngineClosed, LimitExceeded
from edgeinfer.generation.reasoning import Reasoning
from edgeinfer.generation.request import Request
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.types import Finished, SamplingParams
from tests.generation.fakes import (
    LETTERS,
    DeviceTape,
    FakeTokenizer,
    Kept,
    kept_sequences,
    text_of,
    thoughts_of,
)

TOKENIZER: Any = FakeTokenizer()
GREEDY = SamplingParams(temperature=0)
PROMPT = TOKENIZER.encode("Say it: ")
BACKENDS = pytest.mark.parametrize("backend_class", [TapeBackend, DeviceTape], ids=["host", "pipelined"])
Make = Callable[..., TapeBackend]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def serve(backend: TapeBackend, *requests: Request, **options: Any) -> list[Kept]:
    """Runs all requests together to their ends."""
    scheduler = Scheduler(backend, TOKENIZER, **options)
    outlets = [Kept() for _ in requests]
    for request, outlet in zip(requests, outlets, strict=True):
        scheduler.add(request, outlet)
    while scheduler.tick():
        pass
    return outlets


def tape(text: str | None, backend_class: Make = TapeBackend, **options: Any) -> TapeBackend:
    return backend_class(None if text is None else encode(text), vocab_size=len(LETTERS), **options)


@BACKENDS
def test_an_answer_up_to_its_end_token(backend_class: Make) -> None:
    backend = tape("Hello", backend_class)
    (outlet,) = serve(backend, Request(PROMPT, GREEDY))
    assert outlet.text == "Hello"
    assert outlet.ids == encode("Hello")
    finished = outlet.finished
    assert (finished.finish_reason, finished.stop, finished.truncated) == ("stop", None, False)
    assert (finished.usage.prompt, finished.usage.cached, finished.usage.completion) == (len(PROMPT), 0, 6)
    assert 0 < finished.timings.first_token <= finished.timings.total
    assert finished.timings.prefill_rate > 0
    assert finished.timings.decode_rate > 0
    assert finished.backend == "tape (cpu)"
    assert kept_sequences(backend) == [PROMPT + encode("Hello")]


@BACKENDS
def test_max_tokens_stop_strings_and_ends(backend_class: Make) -> None:
    def ended(text: str, **params: Any) -> tuple[str, Finished]:
        (outlet,) = serve(tape(text, backend_class), Request(PROMPT, SamplingParams(temperature=0, **params)))
        return outlet.text, outlet.finished

    text, finished = ended("Hello", max_tokens=3)
    assert (text, finished.finish_reason, finished.usage.completion) == ("Hel", "length", 3)
    text, finished = ended("Hello", max_tokens=1)
    assert (text, finished.finish_reason, finished.usage.completion) == ("H", "length", 1)
    text, finished = ended("Hello. You", stop=("\n", "lo."))
    assert (text, finished.finish_reason, finished.stop, finished.usage.completion) == ("Hel", "stop", "lo.", 6)
    text, finished = ended("Hell", stop=("llo",), max_tokens=4)
    assert (text, finished.finish_reason, finished.stop) == ("Hell", "length", None)
    text, finished = ended("Hi", ignore_eos=True, max_tokens=4)
    assert (text, finished.finish_reason) == ("Hi<end><end>", "length")


@BACKENDS
def test_what_a_sequence_keeps_at_the_end(backend_class: Make) -> None:
    """The last token was never fed, whichever way it ended: the same on the host and in the pipeline."""
    for params, kept in (
        (GREEDY, "Hello"),
        (SamplingParams(temperature=0, max_tokens=3), "He"),
        (SamplingParams(temperature=0, stop=("l",)), "He"),
        (SamplingParams(temperature=0, max_tokens=1), ""),
    ):
        backend = tape("Hello", backend_class)
        serve(backend, Request(PROMPT, params))
        assert kept_sequences(backend) == [PROMPT + encode(kept)]
        if params.max_tokens < 5:
            assert backend.steps == params.max_tokens


def test_the_pipeline_feeds_tokens_before_they_are_read() -> None:
    backend = DeviceTape(encode("Hello"), vocab_size=len(LETTERS))
    serve(backend, Request(PROMPT, GREEDY))
    assert backend.fed_unread == 6
    for params in (
        SamplingParams(logprobs=1),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(dry_multiplier=1),
        SamplingParams(mirostat=True),
    ):
        backend = DeviceTape(encode("Hello"), vocab_size=len(LETTERS))
        (outlet,) = serve(backend, Request(PROMPT, params))
        assert outlet.finished.finish_reason == "stop"
        assert backend.fed_unread == 0


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 5, 40]),
    seed=st.integers(0, 2**64 - 1),
    stop=st.lists(st.text("ab ", min_size=1, max_size=2), max_size=2),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {3: 4.0}]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    ignore_eos=st.booleans(),
)
REQUESTS = st.builds(Request, st.lists(st.integers(1, len(LETTERS) - 1), min_size=1, max_size=30), PARAMS)


def outcome(outlet: Kept) -> tuple[Any, ...]:
    finished = outlet.finished
    return outlet.text, outlet.ids, finished.finish_reason, finished.seed, finished.stop, finished.usage.completion


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=4), st.integers(1, 40), st.integers(1, 4))
def test_alone_together_and_pipelined_are_the_same(requests: list[Request], slice_size: int, max_open: int) -> None:
    alone = [outcome(serve(tape(None), request)[0]) for request in requests]
    for backend_class in (TapeBackend, DeviceTape):
        backend = tape(None, backend_class)
        outlets = serve(backend, *requests, prefill_chunk=slice_size, max_open=max_open)
        assert [outcome(outlet) for outlet in outlets] == alone
        assert backend.open_sequences == 0


def test_a_prompt_is_computed_in_slices_between_the_steps_of_others() -> None:
    backend = tape("a" * 60, prefixes=0)
    scheduler = Scheduler(backend, TOKENIZER, prefill_chunk=4)
    first, second = Kept(), Kept()
    scheduler.add(Request(PROMPT[:4], GREEDY), first)
    scheduler.tick()
    scheduler.add(Request(encode("b" * 20), GREEDY), second)
    for _ in range(4):
        before = len(first.ids)
        assert scheduler.tick()
        assert len(first.ids) == before + 1
        assert not second.ids
    scheduler.tick()
    assert len(second.ids) == 1


def test_prompts_share_the_slices_fairly() -> None:
    backend = tape("a", prefixes=0)
    scheduler = Scheduler(backend, TOKENIZER, prefill_chunk=8)
    long, short = Kept(), Kept()
    scheduler.add(Request(encode("b" * 200), GREEDY), long)
    scheduler.add(Request(encode("c" * 8), GREEDY), short)
    for _ in range(4):
        before = backend.tokens
        scheduler.tick()
        assert backend.tokens - before <= 8 + 1
    assert short.finished.finish_reason == "stop"
    assert not long.events


@BACKENDS
def test_a_full_context_ends_the_answer(backend_class: Make) -> None:
    backend = tape("a" * 100, backend_class, context=20)
    (outlet,) = serve(backend, Request(PROMPT, GREEDY))
    assert outlet.finished.finish_reason == "length"
    assert outlet.finished.usage.completion == 20 - len(PROMPT)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    info = replace(TapeBackend().info, context=16, vocab_size=64)
    Request([1] * 15).check(info)
    with pytest.raises(ContextLimit, match=r"16 tokens.*context holds 16") as caught:
        Request([1] * 16).check(info)
    assert (caught.value.needed, caught.value.available) == (17, 16)
    for request, match in (
        (Request([]), "empty"),
        (Request([1, 64]), "token id 64 is outside the vocabulary of 64"),
        (Request([-1]), "token id -1"),
        (Request([1.5]), "flat list"),  # type: ignore[list-item]
        (Request([[1]]), "flat list"),  # type: ignore[list-item]
        (Request([1], SamplingParams(logit_bias={99: 1.0})), "logit_bias: token id 99"),
    ):
        with pytest.raises(BadRequest, match=match):
            request.check(info)


@BACKENDS
def test_a_remembered_prefix_is_not_computed_again(backend_class: Make) -> None:
    backend = tape("Hello", backend_class)
    serve(backend, Request(PROMPT, GREEDY))
    (outlet,) = serve(backend, Request(PROMPT + encode("Hello?"), GREEDY))
    assert outlet.finished.usage.cached == len(PROMPT) + 5
    assert backend.tokens == len(PROMPT) + 5 + 1 + 5 + (2 if backend_class is DeviceTape else 0)


class Uneven(TapeBackend):
    """Gives logits that are not finite to the sequences that hold a token."""

    poison = 7

    def step(self, chunks: Any) -> Any:
        logits = super().step(chunks)
        for chunk, rows in zip(chunks, logits, strict=True):
            if self.poison in chunk.state.slot.tokens:
                rows.fill(np.nan)
        return logits


class UnevenDevice(Uneven, DeviceTape):
    def step(self, chunks: Any) -> Any:
        import mlx.core as mx

        states = [self.poison in chunk.state.slot.tokens for chunk in chunks]
        rows = DeviceTape.step(self, chunks)
        return [
            mx.array(np.full(row.shape, np.nan, np.float32)) if bad else row
            for bad, row in zip(states, rows, strict=True)
        ]


@pytest.mark.parametrize("backend_class", [Uneven, UnevenDevice], ids=["host", "pipelined"])
def test_a_failing_request_ends_alone(backend_class: Make) -> None:
    backend = tape("Hello", backend_class)
    good, bad, other = serve(backend, Request(PROMPT, GREEDY), Request([7, 5, 7], GREEDY), Request([5], GREEDY))
    assert bad.finished.finish_reason == "error"
    assert isinstance(bad.error, EdgeInferError)
    assert "not finite" in str(bad.error)
    for outlet in (good, other):
        assert (outlet.text, outlet.error) == ("Hello", None)
    assert backend.open_sequences == 0


@BACKENDS
def test_a_failing_step_reaches_every_open_request(backend_class: Make) -> None:
    boom = RuntimeError("the device is gone")
    backend = tape("Hello", backend_class, faults={3: boom})
    outlets = serve(backend, Request(PROMPT, GREEDY), Request([5], GREEDY))
    for outlet in outlets:
        assert outlet.error is boom
        assert outlet.finished.finish_reason == "error"
        assert outlet.text in ("He", "Hel")
    (outlet,) = serve(backend, Request(PROMPT, GREEDY))
    assert outlet.text == "Hello"


def test_cancelled_and_paused_requests() -> None:
    scheduler = Scheduler(tape("Hello"), TOKENIZER, max_open=1)
    going, paused, waiting = Kept(), Kept(ready=False), Kept()
    for outlet in (going, paused, waiting):
        scheduler.add(Request(PROMPT, GREEDY), outlet)
    for _ in range(3):
        scheduler.tick()
    assert not paused.events
    going.cancelled = waiting.cancelled = True
    assert not scheduler.tick()
    assert (going.text, going.finished.finish_reason) == ("Hel", "cancelled")
    assert (waiting.text, waiting.finished.finish_reason) == ("", "cancelled")
    paused.ready = True
    while scheduler.tick():
        pass
    assert paused.text == "Hello"


class Narrow(TapeBackend):
    """Holds so many tokens in one step, and so many sequences."""

    tokens_held, sequences_held = 40, 3

    def open(self, tokens: Any = ()) -> Any:
        if self.open_sequences == self.sequences_held:
            raise LimitExceeded("all sequences are open", self.sequences_held + 1, self.sequences_held)
        return super().open(tokens)

    def step(self, chunks: Any) -> Any:
        needed = sum(chunk.state.length + len(chunk.tokens) for chunk in chunks)
        if needed > self.tokens_held:
            raise ContextLimit("the cache is full", needed, self.tokens_held)
        return super().step(chunks)


def test_requests_that_do_not_fit_together_are_computed_one_after_the_other() -> None:
    backend = tape("Hello", Narrow)
    backend.sequences_held = 4
    short = [Request([number] * 16, GREEDY) for number in (5, 6, 7)]
    outlets = serve(backend, *short, Request([8] * 41, GREEDY))
    assert [outlet.text for outlet in outlets] == ["Hello"] * 3 + [""]
    assert isinstance(outlets[3].error, ContextLimit)
    assert max(backend.sizes) > 1


def test_a_sequence_too_many_for_the_backend_waits() -> None:
    outlets = serve(tape("Hello", Narrow), *(Request([number], GREEDY) for number in range(3, 12)))
    assert [outlet.text for outlet in outlets] == ["Hello"] * 9


def test_paused_requests_leave_their_places_to_others() -> None:
    scheduler = Scheduler(tape("Hello"), TOKENIZER, max_open=2)
    paused, last = [Kept() for _ in range(4)], Kept()
    for outlet in paused:
        scheduler.add(Request(PROMPT, GREEDY), outlet)
        scheduler.tick()
        outlet.ready = False
    scheduler.add(Request(PROMPT, GREEDY), last)
    while scheduler.tick():
        pass
    assert [outlet.text for outlet in (*paused, last)] == ["H"] * 4 + ["Hello"]
    for outlet in paused:
        outlet.ready = True
    while scheduler.tick():
        pass
    assert [outlet.text for outlet in paused] == ["Hello"] * 4


def test_a_failing_step_leaves_alone_who_was_not_part_of_it() -> None:
    scheduler = Scheduler(tape("Hello", faults={2: RuntimeError("the device is gone")}), TOKENIZER)
    paused, going = Kept(ready=False), Kept()
    for outlet in (paused, going):
        scheduler.add(Request(PROMPT, GREEDY), outlet)
    while scheduler.tick():
        pass
    assert isinstance(going.error, RuntimeError)
    paused.ready = True
    while scheduler.tick():
        pass
    assert (paused.text, paused.error) == ("Hello", None)


def test_closing_cancels() -> None:
    backend = tape("Hello")
    scheduler = Scheduler(backend, TOKENIZER, max_open=1)
    outlets = [Kept(), Kept()]
    for outlet in outlets:
        scheduler.add(Request(PROMPT, GREEDY), outlet)
    scheduler.tick()
    scheduler.close()
    assert [outlet.finished.finish_reason for outlet in outlets] == ["cancelled", "cancelled"]
    with pytest.raises(EngineClosed):
        backend.open()


def test_logprobs_of_every_token() -> None:
    (outlet,) = serve(tape("Hi"), Request(PROMPT, SamplingParams(temperature=0, logprobs=2)))
    entries = [entry for event in outlet.events if not isinstance(event, Finished) for entry in event.logprobs]
    assert [(entry.id, entry.text) for entry in entries] == list(zip(encode("Hi"), "Hi", strict=True))
    for entry in entries:
        assert entry.logprob == pytest.approx(0, abs=1e-6)
        assert len(entry.top) == 2
        assert entry.top[0] == (entry.id, entry.text, entry.logprob)


def test_seeds_flags_and_warnings_are_reported() -> None:
    request = Request(PROMPT, SamplingParams(seed=9), truncated=True, warnings=["looks like <end>"])
    (outlet,) = serve(tape("Hi"), request)
    finished = outlet.finished
    assert (finished.seed, finished.truncated, finished.warnings) == (9, True, ("looks like <end>",))
    first, second = (serve(tape(None), Request(PROMPT, SamplingParams(max_tokens=12)))[0] for _ in range(2))
    (again,) = serve(tape(None), Request(PROMPT, SamplingParams(max_tokens=12, seed=first.finished.seed)))
    assert again.ids == first.ids
    assert first.finished.seed != second.finished.seed


def test_thoughts_are_told_apart() -> None:
    (outlet,) = serve(tape("<think>\nHm</think>\n\nYes"), Request(PROMPT, GREEDY, reasoning=Reasoning()))
    assert (thoughts_of(outlet.events), text_of(outlet.events)) == ("Hm", "Yes")
    assert outlet.ids == encode("<think>\nHm</think>\n\nYes")


def test_dry_breaks_a_loop() -> None:
    params = SamplingParams(temperature=0, dry_multiplier=60.0, max_tokens=30)
    loop = "abc" * 20
    (plain,) = serve(tape(loop), Request(PROMPT, GREEDY))
    (broken,) = serve(tape(loop), Request(PROMPT, params))
    assert plain.text == loop
    assert broken.text.startswith("abc")
    assert not broken.text.startswith("abcabcabc")
