"""An engine in a process of its own: the same answers, and an error in place of the program's end."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeinfer import run_batch
from edgeinfer.backends import Choice
from edgeinfer.errors import BadRequest, ContextLimit, EdgeInferError, EngineClosed, EngineCrashed, MemoryLimit
from edgeinfer.generation import isolated, wire
from edgeinfer.generation.isolated import IsolatedEngine
from edgeinfer.generation.reasoning import FORMATS, Reasoning
from edgeinfer.generation.request import Request
from edgeinfer.generation.stream import BACKLOG
from edgeinfer.llm import LLM
from edgeinfer.types import Finished, ReasoningDelta, SamplingParams, TextDelta, Timings, TokenLogprob, Usage
from tests.batch.taped import PlainTemplate, Tokens, read, texts, write
from tests.generation.children import PROGRAM
from tests.generation.fakes import text_of
from tests.tiny import tiny_gguf

GREEDY = SamplingParams(temperature=0)


def ask(text: str, **options: Any) -> Request:
    return Request(Tokens().encode(text), SamplingParams(temperature=0, **options))


@pytest.fixture(scope="module")
def engine() -> Iterator[IsolatedEngine]:
    made = IsolatedEngine([], PROGRAM)
    yield made
    made.close()


def test_an_answer_comes_through(engine: IsolatedEngine) -> None:
    events = list(engine.submit(ask("Say:hello=", logprobs=1)))
    assert text_of(events) == "hello"
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason == "stop"
    assert last.usage == Usage(prompt=10, completion=6)
    assert engine.info.backend == "tape"
    assert engine.memory_in_use() > psutil.Process().memory_info().rss


def test_requests_are_checked_here(engine: IsolatedEngine) -> None:
    pid = engine.pid
    with pytest.raises(BadRequest, match="prompt is empty"):
        engine.submit(Request([]))
    with pytest.raises(ContextLimit):
        engine.submit(Request([1] * 600))
    assert engine.pid == pid


@pytest.mark.parametrize(
    ("letter", "problem", "number"),
    [
        ("!", "was killed, most likely by the system for want of memory", signal.SIGKILL),
        ("#", r"aborted, as a GPU .* \(\[METAL\] Command buffer execution failed: Insufficient Memory", signal.SIGABRT),
        ("$", "has hung in one step for 7 s", 0),
        ("%", "has not been heard of for 7 s", 0),
        ("~", "process ended", 0),
    ],
)
def test_a_process_that_ends_or_hangs_costs_what_it_was_doing(
    engine: IsolatedEngine, letter: str, problem: str, number: int
) -> None:
    before, began = engine.pid, time.monotonic()
    stream = engine.submit(ask(f"{letter}:a="))
    ended = next(stream)
    assert isinstance(ended, Finished)
    assert ended.finish_reason == "error"
    with pytest.raises(EngineCrashed, match=problem) as caught:
        next(stream)
    assert time.monotonic() - began < 10
    assert caught.value.signal == number
    assert not psutil.pid_exists(before)
    assert text_of(list(engine.submit(ask("Say:again=")))) == "again"
    assert engine.pid != before


def test_a_long_step_that_works_is_no_hang(engine: IsolatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "SILENT_SECONDS", 2)
    assert text_of(list(engine.submit(ask("&:a=")))) == "a"


def test_want_of_memory_is_an_error_of_one_request(engine: IsolatedEngine) -> None:
    before = engine.pid
    with pytest.raises(MemoryLimit, match="bad_alloc"):
        list(engine.submit(ask("^:a=")))
    assert text_of(list(engine.submit(ask("Say:b=")))) == "b"
    assert engine.pid == before


@pytest.mark.parametrize(("when", "problem"), [("load", "was killed"), ("stall", "has hung in one step")])
def test_a_process_that_dies_while_loading(when: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "SILENT_SECONDS", 3)
    with pytest.raises(EngineCrashed, match=problem):
        IsolatedEngine([when], PROGRAM)


def test_cancelling_leaving_and_reading_slowly() -> None:
    long = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    engine = IsolatedEngine(["", "0.002"], PROGRAM)
    try:
        stream = engine.submit(Request(Tokens().encode("Say:x="), long))
        assert isinstance(next(stream), TextDelta)
        stream.cancel()
        last = list(stream)[-1]
        assert isinstance(last, Finished)
        assert last.finish_reason == "cancelled"
        assert last.usage.completion < 300
        slow = engine.submit(Request(Tokens().encode("Say:x="), long))
        next(slow)
        other = engine.submit(ask("Say:" + "y" * 200 + "="))
        assert text_of(list(other)) == "y" * 200
        assert slow._channel._items.qsize() < 2 * BACKLOG + 40  # it was paused
        assert list(slow)[-1].usage.completion == 300  # type: ignore[union-attr]  # and went on
    finally:
        engine.close()


def test_close_ends_open_requests_and_the_process() -> None:
    engine = IsolatedEngine(["", "0.01"], PROGRAM)
    pid = engine.pid
    stream = engine.submit(ask("Say:" + "x" * 200 + "="))
    next(stream)
    engine.close()
    engine.close()
    assert not psutil.pid_exists(pid)
    last = list(stream)[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason == "cancelled"
    with pytest.raises(EngineClosed):
        engine.submit(ask("Say:x="))


def test_a_dropped_engine_ends_its_process() -> None:
    engine = IsolatedEngine([], PROGRAM)
    pid = engine.pid
    del engine
    deadline = time.monotonic() + 10  # its reader may hold it for a moment more
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


SCRIPT = """
import sys, time
import edgeinfer
llm = edgeinfer.load(sys.argv[1], isolate=True)
print(llm._engine.pid, llm.generate("Hello", max_tokens=3, temperature=0, ignore_eos=True).usage.completion, flush=True)
if sys.argv[2] == "wait":
    time.sleep(100)
"""


@pytest.mark.parametrize("end", ["exit", "wait"])
def test_a_script_without_a_main_guard_and_its_sudden_end(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the current folder was imported')")
    command = [sys.executable, "-P", str(script), str(tiny_gguf(tmp_path / "tiny.gguf")), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        pid, made = map(int, process.stdout.readline().split())
        assert made == 3
        if end == "wait":
            process.kill()
        process.wait(20)
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_a_crash_is_one_also_where_the_next_call_is_the_first_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = isolated._Child._lines

    def late(child: Any) -> Iterator[Any]:
        yield from lines(child)
        time.sleep(0.5)

    monkeypatch.setattr(isolated._Child, "_lines", late)
    engine = IsolatedEngine([], PROGRAM)
    process = psutil.Process(engine.pid)
    lost = engine.submit(ask("!:a="))
    until = time.monotonic() + 10
    while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:  # a wait would take its exit code
        time.sleep(0.01)
    assert text_of(list(engine.submit(ask("Say:b=")))) == "b"
    with pytest.raises(EngineCrashed, match="was killed"):
        list(lost)
    engine.close()


def test_a_row_that_brings_the_engine_down_fails_alone(tmp_path: Path) -> None:
    rows = [{"custom_id": str(n), "prompt": f"{'!' if n in (7, 21) else ''}:{n}="} for n in range(30)]
    tokenizer: Any = Tokens()
    template: Any = PlainTemplate()
    with LLM("tape", Choice("tape", "a test"), IsolatedEngine([], PROGRAM), tokenizer, template) as llm:
        result = run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, temperature=0)
    assert (result.done, result.failed) == (28, 2)
    assert texts(tmp_path / "out.jsonl") == {str(n): str(n) for n in range(30) if n not in (7, 21)}
    failed = {row["line"]: row["error"]["code"] for row in read(tmp_path / "out.errors.jsonl")}
    assert failed == {8: "engine_crashed", 22: "engine_crashed"}


def test_an_engine_that_always_crashes_ends_the_batch(tmp_path: Path) -> None:
    rows = [{"custom_id": str(n), "prompt": f"!:{n}="} for n in range(30)]
    tokenizer: Any = Tokens()
    template: Any = PlainTemplate()
    with LLM("tape", Choice("tape", "a test"), IsolatedEngine([], PROGRAM), tokenizer, template) as llm:  # noqa: SIM117
        with pytest.raises(EngineCrashed):
            run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, temperature=0)


def test_what_goes_over_the_wire_arrives() -> None:
    request = Request(
        [1, 2],
        SamplingParams(logit_bias={3: 1.5}, stop=["a"], seed=2**64 - 1, dry_breakers=("x",)),
        truncated=True,
        end_ids=frozenset({4, 5}),
        reasoning=Reasoning(opened=FORMATS[0]),
        warnings=["w"],
    )
    assert wire.unpack_request(_through_json(wire.pack_request(request))) == request
    logprob = TokenLogprob(1, "a", -0.5, ((2, "b", float("-inf")),))
    for event in (
        TextDelta("é\ud800", (1, 2), (logprob,), step=3),
        ReasoningDelta("x", step=4),
        Finished("stop", Usage(1, 2), Timings(0.5), 7, True, "a", "tape", ("w",)),
    ):
        found = wire.unpack_event(_through_json(wire.pack_event(event)))
        assert found == event
        assert getattr(found, "step", None) == getattr(event, "step", None)  # it counts in no comparison


def test_errors_arrive_as_what_they_are() -> None:
    error = wire.unpack_error(_through_json(wire.pack_error(ContextLimit("too long", 5, 3))))
    assert type(error) is ContextLimit
    assert (str(error), error.needed, error.available) == ("too long", 5, 3)
    other = wire.unpack_error(_through_json(wire.pack_error(ValueError("odd"))))
    assert type(other) is EdgeInferError
    assert str(other) == "ValueError: odd"


def _through_json(value: dict[str, Any]) -> dict[str, Any]:
    arrived: dict[str, Any] = json.loads(json.dumps(value).encode())
    return arrived
