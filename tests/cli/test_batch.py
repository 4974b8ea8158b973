"""``edgeinfer batch`` as a person types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.batch.taped import read, texts, write
from tests.tiny import tiny_gguf

COMMAND = [sys.executable, "-m", "edgeinfer", "batch"]
ROWS = [{"custom_id": str(n), "prompt": f"Hello {n}", "max_tokens": 4} for n in range(12)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


def batch(tiny: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, folder / "in.jsonl", "-o", folder / "out.jsonl", "-m", tiny, *arguments]
    return subprocess.run([*map(str, command)], capture_output=True, timeout=120, text=True)


def test_a_batch_and_the_same_command_again(tiny: Path, tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", ROWS)
    done = batch(tiny, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("12 rows done · ")
    assert set(texts(tmp_path / "out.jsonl")) == {str(n) for n in range(12)}
    again = batch(tiny, tmp_path)
    assert again.returncode == 0
    assert "12 rows done (12 by earlier runs)" in again.stderr


def test_failed_rows_give_exit_code_3_and_progress_can_be_json(tiny: Path, tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [*ROWS[:3], "{"])
    done = batch(tiny, tmp_path, "--json-progress", "--ordered")
    assert done.returncode == 3
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert events[-1]["event"] == "result"
    assert (events[-1]["done"], events[-1]["failed"]) == (3, 1)
    assert events[-2]["event"] == "progress"
    assert events[-2]["total"] == 4
    assert [row["custom_id"] for row in read(tmp_path / "out.jsonl")] == ["0", "1", "2"]
    assert batch(tiny, tmp_path, "--quiet", "--ordered").stderr == ""


def test_options_of_the_command_line_are_what_rows_start_from(tiny: Path, tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [{"prompt": "Hello"}, {"prompt": "Hello", "max_tokens": 2}])
    done = batch(tiny, tmp_path, "--max-tokens", 5, "--ignore-eos", "--ordered", "--raw")
    assert done.returncode == 0, done.stderr
    bodies = [row["response"]["body"] for row in read(tmp_path / "out.jsonl")]
    assert [body["usage"]["completion_tokens"] for body in bodies] == [5, 2]
    assert bodies[0]["object"] == "text_completion"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--max-rows", "0"], "max-rows"),
        (["--temperature", "-1"], "temperature"),
        (["--on-error", "go"], "on-error"),
        (["--model", "nothing-like-it.gguf"], "nothing-like-it"),
    ],
)
def test_what_cannot_be_is_exit_code_2_and_one_line(
    tiny: Path, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    write(tmp_path / "in.jsonl", ROWS)
    done = batch(tiny, tmp_path, *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_it_with_130_and_it_goes_on(tiny: Path, tmp_path: Path) -> None:
    rows: list[Any] = [{**row, "max_tokens": 100 if int(row["custom_id"]) else 1} for row in ROWS]
    write(tmp_path / "in.jsonl", rows)
    options = ["--ignore-eos", "--raw", "--quiet"]
    command = [*COMMAND, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "-m", tiny, *options]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not ((tmp_path / "out.jsonl").exists() and (tmp_path / "out.jsonl").stat().st_size):
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == "stopped; the same command goes on from here"
    kept = read(tmp_path / "out.jsonl")
    assert 0 < len(kept) < 12
    assert batch(tiny, tmp_path, *options).returncode == 0
    assert read(tmp_path / "out.jsonl")[: len(kept)] == kept
    assert len(read(tmp_path / "out.jsonl")) == 12


def test_a_plan_counts_and_loads_nothing(tiny: Path, tmp_path: Path) -> None:
    common = "the same beginning of every prompt " * 4
    rows: list[Any] = [{"prompt": f"{common}{n}", "max_tokens": 10} for n in range(8)]
    write(tmp_path / "in.jsonl", [*rows, rows[0], "{", {"prompt": "x"}, {"prompt": "long " * 600, "max_tokens": 5}])
    command = [*COMMAND, tmp_path / "in.jsonl", "--plan", "-m", tiny, "--max-tokens", 7]
    done = subprocess.run([*map(str, command)], capture_output=True, timeout=120, text=True)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["rows"] == "12, of them 1 that cannot be answered"
    assert lines["repeats"].startswith("1 ask")
    assert lines["too"].startswith("long  1 do not fit the context of 512")
    assert lines["answers"] == "at most 97 tokens"
    assert 8 * 100 < int(lines["shared"].split()[0].replace(",", "")) < 8 * 160
    assert not list(tmp_path.glob("*.errors.jsonl"))


def test_a_batch_wants_an_output(tiny: Path, tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", ROWS)
    done = subprocess.run([*COMMAND, str(tmp_path / "in.jsonl")], capture_output=True, timeout=120, text=True)
    assert done.returncode == 2
    assert "-o FILE" in done.stderr
