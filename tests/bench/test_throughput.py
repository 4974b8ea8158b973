"""The bench of batches: llama.cpp's parallel answers are its single ones, and every way makes all tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from edgeinfer import load
from edgeinfer.bench.parallel import ParallelLlama
from edgeinfer.bench.throughput import LLAMA, ONE_BY_ONE, bench_throughput
from tests.tiny import tiny_gguf


def test_parallel_answers_are_those_of_llama_cpp_alone(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    prompts = [[1 + number, 5, 9 + number % 3] * (1 + number % 4) for number in range(9)]
    peer = ParallelLlama(path, threads=2, slots=4, tokens_a_slot=32)
    answers = peer.answer(prompts, 8)
    again = peer.answer(prompts[::-1], 8)[::-1]
    peer.close()
    assert again == answers
    with load(str(path), backend="llama.cpp", threads=2) as llm:
        for prompt, answer in zip(prompts, answers, strict=True):
            reply = llm.generate(prompt, temperature=0, max_tokens=8, ignore_eos=True, speculation=False)
            assert list(reply.ids) == answer


def test_every_way_is_measured_and_compared(tmp_path: Path) -> None:
    steps: list[str] = []
    measured = bench_throughput(
        tiny_gguf(tmp_path / "tiny.gguf"), rows=5, tokens=4, threads=1, rounds=2, on_step=steps.append
    )
    assert len(steps) == 6
    assert measured.ratios.keys() == {ONE_BY_ONE, LLAMA}
    assert all(rate.low > 0 and rate.count == 2 for rate in measured.rates.values())


def test_the_command_prints_json(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    command = [sys.executable, "-m", "edgeinfer", "bench", "throughput", str(path)]
    done = subprocess.run([*command, "--rows", "3", "--tokens", "3", "--rounds", "1", "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 3
