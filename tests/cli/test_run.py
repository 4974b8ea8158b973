"""``edgeinfer run`` as a person types it: real processes, real pipes, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_gguf

COMMAND = [sys.executable, "-m", "edgeinfer"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


def edgeinfer(*arguments: object, stdin: bytes | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    feed = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, timeout=120, **feed, **options)


def run(tiny: Path, *arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return edgeinfer("run", "-m", tiny, "--max-tokens", 8, "--temperature", 0, *arguments, stdin=stdin)


def answer(tiny: Path, *arguments: object, stdin: bytes | None = None) -> dict[str, Any]:
    done = run(tiny, "--json", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_text_goes_to_stdout_and_a_summary_to_stderr(tiny: Path) -> None:
    done = run(tiny, "Hello")
    assert done.returncode == 0
    assert done.stdout.endswith(b"\n")
    summary = done.stderr.decode().splitlines()
    assert len(summary) == 1
    for part in ("tokens", "tokens/s", "first after", "memory", "mlx (", "MLX runs llama on"):
        assert part in summary[0]


def test_quiet_says_nothing_and_stats_say_more(tiny: Path) -> None:
    assert run(tiny, "Hello", "--quiet").stderr == b""
    report = run(tiny, "Hello", "--stats", "--seed", 5).stderr.decode()
    for name in ("model", "backend", "prompt", "answer", "time", "memory", "context", "drafts"):
        assert name in report
    assert re.search(r"^seed +5$", report, re.MULTILINE)


def test_drafts_change_the_figures_and_not_the_text(tiny: Path) -> None:
    """A random model ends up repeating itself."""
    drafted, plain = (
        answer(tiny, "Hello", "--raw", "--max-tokens", 300, "--ignore-eos", *more)
        for more in ((), ("--speculation", "off"))
    )
    assert drafted["text"] == plain["text"]
    assert drafted["speculation"]["tokens"] >= drafted["speculation"]["steps"] > 0
    assert plain["speculation"]["why"] == "off"
    assert (plain["usage"]["drafted"], plain["usage"]["accepted"]) == (0, 0)
    report = run(tiny, "Hello", "--stats").stderr.decode()
    assert "tokens a step" in report
    assert "accepted" in report
    assert run(tiny, "Hello", "--speculation", "perhaps").returncode == 2


def test_json_is_one_object_with_the_whole_reply(tiny: Path) -> None:
    reply = answer(tiny, "Hello", "--seed", 3, "--logprobs", 2)
    assert {"text", "ids", "finish_reason", "usage", "timings", "backend", "seed", "truncated"} <= set(reply)
    assert reply["backend_reason"].startswith("MLX runs llama on ")
    assert reply["seed"] == 3
    assert reply["usage"]["completion"] == len(reply["ids"]) == len(reply["logprobs"])
    assert reply["finish_reason"] in ("stop", "length")


def test_greedy_and_seeded_answers_repeat(tiny: Path) -> None:
    assert run(tiny, "Hello").stdout == run(tiny, "Hello").stdout
    warm = ("Hello", "--temperature", 1.2, "--seed", 11)
    assert answer(tiny, *warm)["ids"] == answer(tiny, *warm)["ids"]


def test_a_prompt_comes_from_stdin_or_gets_it_appended(tiny: Path) -> None:
    written = answer(tiny, "one\n\ntwo")
    assert answer(tiny, "-", stdin=b"one\n\ntwo\n")["ids"] == written["ids"]
    assert answer(tiny, stdin=b"one\n\ntwo")["ids"] == written["ids"]
    assert answer(tiny, "one", stdin=b"two\n")["ids"] == written["ids"]


def test_raw_leaves_the_template_out(tiny: Path) -> None:
    assert answer(tiny, "--raw", "Hello")["usage"]["prompt"] < answer(tiny, "Hello")["usage"]["prompt"]


def test_a_look_alike_of_a_control_token_stays_text_and_is_warned_of(tiny: Path) -> None:
    done = run(tiny, "Hello <|im_end|>", "--quiet")
    assert done.returncode == 0
    assert done.stderr.decode().startswith("warning: ")
    assert "<|im_end|>" in done.stderr.decode()


def test_what_the_model_writes_cannot_command_the_terminal(tiny: Path) -> None:
    from edgeinfer.llm import load_tokenizer

    tokenizer = load_tokenizer(str(tiny))
    escape = next(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"\x1b")
    done = run(tiny, "Hello", "--logit-bias", escape, 1000)
    assert b"\x1b" not in done.stdout + done.stderr
    assert "␛" * 8 in done.stdout.decode()
    assert answer(tiny, "Hello", "--logit-bias", escape, 1000)["text"] == "\x1b" * 8


def test_a_reader_that_leaves_ends_it_quietly(tiny: Path) -> None:
    line = f"{sys.executable} -m edgeinfer run -q -m {tiny} --max-tokens 300 --ignore-eos Hello | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=120)
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 10, b"")


def test_ctrl_c_exits_130_and_keeps_the_partial_text(tmp_path: Path) -> None:
    endless = tiny_gguf(tmp_path / "endless.gguf", context=100_000)
    arguments = ["run", "-m", str(endless), "--max-tokens", "90000", "--ignore-eos", "--context", "100000", "Hello"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, summary = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + rest
    assert "(stopped)" in summary.decode()
    assert "Traceback" not in summary.decode()


def test_ctrl_c_while_loading_is_quiet(tiny: Path) -> None:
    with subprocess.Popen([*COMMAND, "run", "-m", str(tiny), "Hello"], stderr=subprocess.PIPE) as process:
        time.sleep(0.25)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # before or after Python could say how to end
    assert process.returncode != 130 or b"Traceback" not in errors


def refused(done: subprocess.CompletedProcess[bytes], code: int, *parts: str) -> None:
    """One clear line on stderr, nothing on stdout, and the exit code of its kind."""
    message = done.stderr.decode()
    assert done.returncode == code, message
    assert done.stdout == b""
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([""], ["prompt is empty"]),
        (["  \n"], ["prompt is empty"]),
        (["hi", "--temperature", "nan"], ["temperature", "0 to 100"]),
        (["hi", "--top-k", "-1"], ["top_k", "0 or more"]),
        (["hi", "--top-p", "2"], ["top_p"]),
        (["hi", "--max-tokens", "0"], ["max_tokens"]),
        (["hi", "--temperatur", "1"], ["--temperatur", "--temperature"]),
        (["hi", "--seed", "x"], ["--seed", "integer"]),
        (["hi", "--stop", ""], ["stop"]),
        (["hi", "--backend", "cuda"], ["--backend", "mlx", "llama.cpp"]),
        (["hi", "--raw", "--system", "x"], ["--raw"]),
        (["hi", "--logit-bias", "999999", "1"], ["logit_bias", "999999"]),
        (["hi", "there"], ["there"]),
    ],
)
def test_a_bad_request_is_one_line_and_exit_2(tiny: Path, arguments: list[str], parts: list[str]) -> None:
    refused(edgeinfer("run", "-m", tiny, *arguments), 2, *parts)


def test_stdin_that_is_no_utf_8_names_the_byte(tiny: Path) -> None:
    refused(run(tiny, "-", stdin=b"caf\xe9 au lait"), 2, "stdin", "byte 3", "UTF-8")


def test_arguments_that_are_no_utf_8_are_refused_by_name(tiny: Path) -> None:
    refused(run(tiny, os.fsdecode(b"caf\xe9")), 2, "the prompt", "character 3", "UTF-8")
    refused(run(tiny, "hi", "--system", os.fsdecode(b"\xff")), 2, "--system", "character 0", "UTF-8")


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", line.replace("edgeinfer", f"{sys.executable} -m edgeinfer")], capture_output=True
    )


def test_streams_that_are_closed_change_neither_the_answer_nor_the_exit_code(tiny: Path) -> None:
    question = f"edgeinfer run -m {tiny} --max-tokens 8 --temperature 0 hi"
    assert shell(f"{question} <&- 2>&-").stdout == run(tiny, "hi").stdout
    silent = shell(f"{question} <&- >&-")
    assert (silent.returncode, silent.stdout, silent.stderr.count(b"\n")) == (0, b"", 1)
    assert shell("edgeinfer run -m nosuch hi <&- >&- 2>&-").returncode == 2
    assert shell(f"edgeinfer tokenize {tiny} <&-").stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_stdout_is_exit_4_and_behind_stderr_nothing(tiny: Path) -> None:
    question = f"edgeinfer run -m {tiny} --max-tokens 8 --temperature 0 hi"
    for line in (question, f"{question} --json", "edgeinfer --help"):
        refused(shell(f"{line} </dev/null >/dev/full"), 4, "output", "No space left")
    assert shell(f"{question} 2>/dev/full").stdout == run(tiny, "hi").stdout


def test_stdin_that_cannot_be_read_is_one_line(tiny: Path) -> None:
    refused(shell(f"edgeinfer run -m {tiny} - 0>/dev/null"), 2, "stdin: cannot be read")


def test_a_typo_in_a_model_name_offers_the_nearest() -> None:
    refused(edgeinfer("run", "-m", "smolm2-135m", "hi"), 2, "smolm2-135m", "smollm2-135m")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", ["Git LFS pointer"]),
        (b"<!DOCTYPE html><html><body>Log in</body></html>", ["HTML"]),
        (b"", ["empty"]),
        (b"GGUF\x03", ["version at byte 4", "the file ends here"]),
    ],
)
def test_a_file_that_is_no_model_is_recognised(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    refused(edgeinfer("run", "-m", file, "hi"), 2, "model.gguf", *parts)


def test_a_prompt_that_does_not_fit_is_refused_or_cut_when_asked(tiny: Path) -> None:
    long = "many words " * 200
    refused(run(tiny, "--context", 64, long), 4, "tokens", "64", "--overflow")
    cut = answer(tiny, "--raw", "--context", 64, "--overflow", "drop-oldest", long)
    assert cut["truncated"]
    assert cut["usage"]["prompt"] < 64


def test_no_network_is_exit_5(own_home: Path) -> None:
    environment = {**os.environ, "EDGEINFER_OFFLINE": "1"}
    refused(edgeinfer("run", "-m", "smollm2-135m", "hi", env=environment), 5, "offline")


def test_a_crowded_terminal_gets_help_that_fits() -> None:
    help_text = edgeinfer("run", "--help").stdout.decode()
    assert len(help_text.splitlines()) <= 50
    assert max(map(len, help_text.splitlines())) <= 80
    assert "--xtc-probability" not in help_text
    assert "--xtc-probability" in edgeinfer("run", "--help-all").stdout.decode()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_is_there_at_once(arguments: list[str]) -> None:
    done = edgeinfer(*arguments)
    assert done.returncode == 0
    probe = f"import sys; sys.argv=['edgeinfer', *{arguments!r}]\nfrom edgeinfer.cli import main\n"
    probe += "try: main()\nfinally: print(*[n for n in ('mlx', 'numpy') if n in sys.modules], file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert loaded.stderr.strip() == ""
