"""What a batch gives: the same rows one after another, together, and through llama.cpp's own parallel decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from edgeinfer.backends.llama_library import installed
from edgeinfer.bench.machine import Machine, this_machine
from edgeinfer.bench.parallel import ParallelLlama
from edgeinfer.bench.statistics import Spread, ratio
from edgeinfer.generation.scheduler import MAX_OPEN
from edgeinfer.llm import LLM, load
from edgeinfer.types import Event, Finished

ONE_BY_ONE, TOGETHER, LLAMA = "one by one", "together", "llama.cpp, parallel"
_REST = 0.3  # seconds in which threads of the engine before go to sleep
_THINGS = ("bridge", "kettle", "lighthouse", "violin", "compass", "greenhouse", "bicycle", "harbour")
_ASKED = (
    "Describe a {} to somebody who has never seen one.",
    "Write a short story in which a {} is lost and found again.",
    "List three uses of a {} and say which one matters most.",
    "Explain how a {} is made, step by step, in plain words.",
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens made a second by way of working, and how many times as fast together is, round by round."""

    model: str
    rows: int
    tokens: int  # of each answer
    machine: Machine
    rates: dict[str, Spread]
    ratios: dict[str, Spread]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench_throughput(
    path: Path,
    *,
    name: str = "",
    rows: int = 64,
    tokens: int = 64,
    threads: int = 0,
    rounds: int = 3,
    on_step: Callable[[str], None] = lambda doing: None,
) -> Throughput:
    """Greedy answers of ``tokens`` tokens to ``rows`` prompts, nothing drafted, on MLX; each way in turn.

    llama.cpp is measured where it is installed, with as many sequences and threads as this engine uses.
    """
    threads = threads or psutil.cpu_count(logical=False) or 1
    with load(str(path), backend="mlx", threads=threads) as llm:
        prompts = [_ids(llm, number) for number in range(rows)]
        ways: dict[str, Callable[[], object]] = {
            ONE_BY_ONE: lambda: [llm.generate(prompt, **_options(tokens)) for prompt in prompts],
            TOGETHER: lambda: _together(llm, prompts, tokens),
        }
        peer = None
        if installed():
            peer = ParallelLlama(path, threads, MAX_OPEN, max(map(len, prompts)) + tokens)
            ways[LLAMA] = lambda: peer.answer(prompts, tokens)
        try:
            seconds: dict[str, dict[int, float]] = {way: {} for way in ways}
            for number in range(rounds):
                for way, work in ways.items():
                    on_step(f"round {number + 1} of {rounds}: {way}")
                    time.sleep(_REST)
                    began = time.perf_counter()
                    work()
                    seconds[way][number] = time.perf_counter() - began
        finally:
            if peer is not None:
                peer.close()
    rates = {way: Spread.of([rows * tokens / each for each in times.values()]) for way, times in seconds.items()}
    ratios = {
        way: found for way, times in seconds.items() if way != TOGETHER and (found := ratio(times, seconds[TOGETHER]))
    }
    return Throughput(name or path.name, rows, tokens, this_machine(), rates, ratios)


def _ids(llm: LLM, number: int) -> list[int]:
    """Another prompt for each number, with little in common but how it begins."""
    thing, asked = _THINGS[number % len(_THINGS)], _ASKED[number // len(_THINGS) % len(_ASKED)]
    return llm.tokenize(f"{number}. {asked.format(thing)}")


def _options(tokens: int) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, "speculation": False}


class _Outlet:
    """Tells when a row has ended."""

    cancelled = False
    ready = True

    def __init__(self, ended: SimpleQueue[BaseException | None]) -> None:
        self.submitted = time.perf_counter()
        self._ended = ended

    def put(self, event: Event) -> None:
        if isinstance(event, Finished) and event.finish_reason != "error":
            self._ended.put(None)

    def fail(self, error: BaseException) -> None:
        self._ended.put(error)


def _together(llm: LLM, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    for prompt in prompts:
        llm.submit(prompt, _Outlet(ended), **_options(tokens))
    for _ in prompts:
        if (error := ended.get()) is not None:
            raise error
