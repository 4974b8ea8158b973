"""The engine's thread: answers for every thread that asks, an end for everything that is left, closed or dropped."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import BadRequest, ContextLimit, EngineClosed
from edgeinfer.generation.engine import Engine, Stream
from edgeinfer.generation.request import Request
from edgeinfer.generation.stream import BACKLOG
from edgeinfer.types import Finished, SamplingParams, TextDelta
from tests.generation.fakes import LETTERS, DeviceTape, FakeTokenizer, ids_of, text_of

TOKENIZER: Any = FakeTokenizer()
GREEDY = SamplingParams(temperature=0, max_tokens=400)
PROMPT = TOKENIZER.encode("Say it: ")


class Bound(TapeBackend):
    """A tape that may be used from one thread alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, vocab_size=len(LETTERS), **options)
        self.thread = threading.current_thread()
        self.closed = False

    def open(self, tokens: Any = ()) -> Any:
        assert threading.current_thread() is self.thread
        return super().open(tokens)

    def step(self, chunks: Any) -> Any:
        assert threading.current_thread() is self.thread
        return super().step(chunks)

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        self.closed = True
        super().close()


class BoundDevice(Bound, DeviceTape):
    pass


@pytest.fixture
def engines() -> Iterator[Callable[..., tuple[Engine, Bound]]]:
    made: list[tuple[Engine, Bound]] = []

    def make(text: str | None = "Hello", backend_class: type[Bound] = Bound, **options: Any) -> tuple[Engine, Bound]:
        backends: list[Bound] = []

        def opened() -> Bound:
            backends.append(backend_class(None if text is None else TOKENIZER.encode(text), **options))
            return backends[0]

        made.append((Engine(opened, TOKENIZER), backends[0]))
        return made[-1]

    yield make
    for engine, backend in made:
        engine.close()
        assert backend.closed


def idle(engine: Engine, backend: Bound, seconds: float = 5.0) -> bool:
    """Whether all sequences are given up in time."""
    until = time.monotonic() + seconds
    while engine.call(lambda _: backend.open_sequences):
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def within(seconds: float, threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} hangs"


@pytest.mark.parametrize("backend_class", [Bound, BoundDevice], ids=["host", "pipelined"])
def test_events_up_to_finished(engines: Any, backend_class: type[Bound]) -> None:
    engine, backend = engines("Hello", backend_class)
    events = list(engine.submit(Request(PROMPT, GREEDY)))
    assert text_of(events) == "Hello"
    assert isinstance(events[-1], Finished)
    assert engine.info == backend.info
    stream = engine.submit(Request(PROMPT, GREEDY))
    assert isinstance(next(stream), TextDelta)
    assert text_of(list(stream)) == "ello"
    with pytest.raises(StopIteration):
        next(stream)


def test_what_cannot_be_is_refused_at_submit(engines: Any) -> None:
    engine, backend = engines(context=16)
    with pytest.raises(ContextLimit):
        engine.submit(Request([1] * 16, GREEDY))
    with pytest.raises(BadRequest):
        engine.submit(Request([], GREEDY))
    assert backend.steps == 0


def leave_loop(stream: Stream) -> None:
    for _ in stream:
        break


def leave_with(stream: Stream) -> None:
    with stream:
        next(stream)


def close(stream: Stream) -> None:
    next(stream)
    stream.close()
    stream.close()
    assert list(stream) == []


def drop_generator(stream: Stream) -> None:
    events = iter(stream)
    next(events)
    del events


def raise_inside(stream: Stream) -> None:
    with suppress(ZeroDivisionError):
        for _ in stream:
            raise ZeroDivisionError


@pytest.mark.parametrize("leave", [leave_loop, leave_with, close, drop_generator, raise_inside])
@pytest.mark.parametrize("backend_class", [Bound, BoundDevice], ids=["host", "pipelined"])
def test_leaving_cancels(engines: Any, leave: Callable[[Stream], None], backend_class: type[Bound]) -> None:
    engine, backend = engines("x" * 300, backend_class, delays=0.002)
    stream = engine.submit(Request(PROMPT, GREEDY))
    leave(stream)
    assert idle(engine, backend)
    assert backend.steps < 60
    assert text_of(list(engine.submit(Request(PROMPT, SamplingParams(max_tokens=2, temperature=0))))) == "xx"


def test_dropping_a_stream_cancels(engines: Any) -> None:
    engine, backend = engines("x" * 300, delays=0.002)
    engine.submit(Request(PROMPT, GREEDY))
    gc.collect()
    assert idle(engine, backend)
    assert backend.steps < 60


def test_after_cancel_the_rest_can_be_read(engines: Any) -> None:
    engine, _ = engines("x" * 300, delays=0.002)
    stream = engine.submit(Request(PROMPT, GREEDY))
    events = [next(stream)]
    stream.cancel()
    stream.cancel()
    events += stream
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "cancelled"
    assert text_of(events) == "x" * events[-1].usage.completion
    done = engine.submit(Request(PROMPT, SamplingParams(max_tokens=1)))
    events = list(done)
    done.cancel()
    assert events[-1].finish_reason == "length"


def test_cancel_from_another_thread_wakes_the_reader(engines: Any) -> None:
    engine, _ = engines("x" * 300, delays=[0.0, 0.05])
    stream = engine.submit(Request(PROMPT, GREEDY))
    threading.Timer(0.1, stream.cancel).start()
    assert list(stream)[-1].finish_reason == "cancelled"


def test_a_reader_who_pauses_is_waited_for(engines: Any) -> None:
    engine, backend = engines("x" * 300)
    stream = engine.submit(Request(PROMPT, GREEDY))
    until = time.monotonic() + 5
    while backend.steps <= BACKLOG and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)
    assert BACKLOG < backend.steps <= BACKLOG + 3
    assert text_of(list(stream)) == "x" * 300


def test_a_paused_request_holds_up_no_other(engines: Any) -> None:
    engine, _ = engines("x" * 300)
    stream = engine.submit(Request(PROMPT, GREEDY))
    assert len(list(engine.submit(Request([5], SamplingParams(max_tokens=200, temperature=0))))) == 201
    assert len(list(stream)) == 301


def test_two_threads_get_their_own_answers_in_one_batch(engines: Any) -> None:
    engine, backend = engines(None, delays=0.001)
    requests = [Request([3 + i], SamplingParams(seed=i, max_tokens=40, ignore_eos=True)) for i in range(4)]
    alone = [ids_of(list(engine.submit(request))) for request in requests]
    together: list[list[int]] = [[] for _ in requests]

    def ask(index: int) -> None:
        together[index] = ids_of(list(engine.submit(requests[index])))

    within(20, [threading.Thread(target=ask, args=(index,)) for index in range(4)])
    assert together == alone
    assert max(backend.sizes) > 1


def test_what_opening_raises_is_raised() -> None:
    boom = MemoryError("too large")

    def fail() -> Any:
        raise boom

    with pytest.raises(MemoryError) as caught:
        Engine(fail, TOKENIZER)
    assert caught.value is boom


@pytest.mark.parametrize("backend_class", [Bound, BoundDevice], ids=["host", "pipelined"])
def test_what_a_step_raises_reaches_every_consumer(engines: Any, backend_class: type[Bound]) -> None:
    boom = RuntimeError("the device is gone")
    engine, _ = engines("x" * 300, backend_class, faults={20: boom}, delays=0.002)
    streams = [engine.submit(Request([4 + index], GREEDY)) for index in range(3)]
    for stream in streams:
        events = []
        with pytest.raises(RuntimeError) as caught:
            events.extend(stream)
        assert caught.value is boom
    short = SamplingParams(max_tokens=3, temperature=0)
    assert text_of(list(engine.submit(Request(PROMPT, short)))) == "xxx"


def test_call_runs_on_the_engines_thread(engines: Any) -> None:
    engine, backend = engines()
    assert engine.call(lambda _: threading.current_thread()) is backend.thread
    assert engine.call(lambda given: given) is backend
    boom = ZeroDivisionError()

    def fail(_: Any) -> None:
        raise boom

    with pytest.raises(ZeroDivisionError) as caught:
        engine.call(fail)
    assert caught.value is boom


def test_close_ends_everything(engines: Any) -> None:
    engine, backend = engines("x" * 300, delays=0.002)
    stream = engine.submit(Request(PROMPT, GREEDY))
    next(stream)
    reader_saw: list[Any] = []
    reader = threading.Thread(target=lambda: reader_saw.extend(stream))
    reader.start()
    within(10, [threading.Thread(target=engine.close) for _ in range(3)])
    reader.join(5)
    assert reader_saw[-1].finish_reason == "cancelled"
    assert backend.closed
    assert not backend.thread.is_alive()
    for use in (lambda: engine.submit(Request(PROMPT)), lambda: engine.call(lambda _: None)):
        with pytest.raises(EngineClosed):
            use()


def test_closing_on_the_engines_own_thread_is_no_deadlock(engines: Any) -> None:
    engine, backend = engines()
    engine.call(lambda _: engine.close())
    backend.thread.join(5)
    assert not backend.thread.is_alive()


def test_dropping_an_engine_ends_its_thread(engines: Any) -> None:
    backends: list[Bound] = []

    def opened() -> Bound:
        backends.append(Bound(TOKENIZER.encode("Hello")))
        return backends[0]

    engine = Engine(opened, TOKENIZER)
    stream = engine.submit(Request(PROMPT, GREEDY))
    del engine
    gc.collect()
    assert text_of(list(stream)) == "Hello"
    del stream
    gc.collect()
    backends[0].thread.join(5)
    assert backends[0].closed


def test_a_submit_that_races_with_close_never_hangs(engines: Any) -> None:
    for _ in range(30):
        engine, _ = engines("Hello")
        ends: list[str] = []

        def ask(engine: Engine = engine, ends: list[str] = ends) -> None:
            try:
                while True:
                    ends.append(list(engine.submit(Request(PROMPT, GREEDY)))[-1].finish_reason)
            except EngineClosed:
                ends.append("closed")

        askers = [threading.Thread(target=ask) for _ in range(2)]
        for asker in askers:
            asker.start()
        time.sleep(random.random() * 0.004)
        engine.close()
        for asker in askers:
            asker.join(5)
            assert not asker.is_alive()
        assert ends.count("closed") == 2
        assert set(ends) <= {"stop", "cancelled", "closed"}


@pytest.mark.parametrize("backend_class", [Bound, BoundDevice], ids=["host", "pipelined"])
def test_soak_of_random_requests_and_cancels(engines: Any, backend_class: type[Bound]) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    engine, backend = engines(None, backend_class, context=128)
    wanted = {}
    for key in range(8):
        request = Request([3 + key, 9], SamplingParams(seed=key, max_tokens=30, ignore_eos=True))
        wanted[key] = (request, ids_of(list(engine.submit(request))))
    problems: list[str] = []

    def worker(number: int) -> None:
        rng = random.Random(seed + number)
        for _ in range(34):
            key = rng.randrange(8)
            request, ids = wanted[key]
            stream = engine.submit(request)
            way, after, events = rng.randrange(5), rng.randrange(25), []
            if way == 0:
                continue
            for event in stream:
                events.append(event)
                if way < 3 and len(events) > after:
                    if way == 1:
                        break
                    stream.cancel()
            got = ids_of(events)
            if got != ids[: len(got)] or (way > 2 and got != ids):
                problems.append(f"{key}: {got} is not {ids}")

    within(60, [threading.Thread(target=worker, args=(number,)) for number in range(6)])
    assert not problems
    assert idle(engine, backend)
