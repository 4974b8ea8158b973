"""What happens to an engine when the interpreter goes down or the user presses Ctrl-C, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import sys
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.types import SamplingParams
from tests.generation.fakes import LETTERS, DeviceTape, FakeTokenizer

tokenizer = FakeTokenizer()
tape = tokenizer.encode("x" * 400)
request = Request([5], SamplingParams(temperature=0, max_tokens=400))
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BEGIN + code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("backend", ["TapeBackend", "DeviceTape"])
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "stream.cancel()", "del engine, stream"])
def test_an_engine_that_nobody_closed_lets_the_process_end(backend: str, ending: str) -> None:
    process = start(f"""
engine = Engine(lambda: {backend}(tape, vocab_size=len(LETTERS), delays=0.01), tokenizer)
stream = engine.submit(request)
print(next(stream).text, flush=True)
{ending}
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "x\n"
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert time.monotonic() - began < 8


def test_ctrl_c_reaches_a_waiting_consumer() -> None:
    process = start("""
with Engine(lambda: TapeBackend(tape, vocab_size=len(LETTERS), delays=[0.0, 2.0]), tokenizer) as engine:
    try:
        for event in engine.submit(request):
            print(event.text, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "x\n"
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - began < 1.5
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_ctrl_c_while_the_model_loads() -> None:
    process = start("""
import time
def load():
    print("loading", flush=True)
    time.sleep(2)
    return TapeBackend(tape, vocab_size=len(LETTERS))
try:
    Engine(load, tokenizer)
except KeyboardInterrupt:
    print("interrupted", flush=True)
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
