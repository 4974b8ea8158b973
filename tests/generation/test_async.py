"""Streams in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.types import Finished, SamplingParams
from tests.generation.fakes import LETTERS, FakeTokenizer, text_of

TOKENIZER: Any = FakeTokenizer()
GREEDY = SamplingParams(temperature=0, max_tokens=400)
PROMPT = TOKENIZER.encode("Say it: ")


@pytest.fixture
def engine() -> Iterator[Engine]:
    tape = TOKENIZER.encode("x" * 200)
    with Engine(lambda: TapeBackend(tape, vocab_size=len(LETTERS), delays=0.001), TOKENIZER) as engine:
        yield engine


def quiet(engine: Engine) -> bool:
    until = time.monotonic() + 5
    while engine.call(lambda backend: backend.open_sequences) and time.monotonic() < until:  # type: ignore[attr-defined]
        time.sleep(0.005)
    return time.monotonic() < until


async def collect(engine: Engine) -> list[Any]:
    return [event async for event in engine.submit(Request(PROMPT, GREEDY))]


def test_the_loop_is_never_blocked(engine: Engine) -> None:
    async def main() -> tuple[list[list[Any]], int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.002)
                beats += 1

        beating = asyncio.create_task(beat())
        answers = await asyncio.gather(*(collect(engine) for _ in range(3)))
        beating.cancel()
        return answers, beats

    answers, beats = asyncio.run(main())
    for events in answers:
        assert text_of(events) == "x" * 200
        assert isinstance(events[-1], Finished)
    assert beats > 10


def test_cancelling_the_task_cancels_the_request(engine: Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect(engine))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert quiet(engine)


def test_leaving_the_loop_cancels(engine: Engine) -> None:
    async def main() -> None:
        async with aclosing(aiter(engine.submit(Request(PROMPT, GREEDY)))) as events:  # type: ignore[type-var]
            async for _ in events:
                break

    asyncio.run(main())
    assert quiet(engine)


def test_errors_are_raised_in_the_task() -> None:
    boom = RuntimeError("the device is gone")
    with (
        Engine(lambda: TapeBackend(vocab_size=len(LETTERS), faults={2: boom}), TOKENIZER) as engine,
        pytest.raises(RuntimeError) as caught,
    ):
        asyncio.run(collect(engine))
    assert caught.value is boom


def test_a_loop_that_ends_first_does_no_harm(engine: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = engine.submit(Request(PROMPT, GREEDY))
    events = aiter(stream)
    assert loop.run_until_complete(anext(events)).text == "x"  # type: ignore[arg-type, union-attr]
    loop.close()
    time.sleep(0.05)
    assert text_of(list(engine.submit(Request(PROMPT, SamplingParams(temperature=0, max_tokens=2))))) == "xx"
    stream.close()
    assert quiet(engine)
