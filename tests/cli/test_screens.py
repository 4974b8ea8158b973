"""What stands on the screen before any model is touched: help, complaints, tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def edgeinfer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edgeinfer", *arguments], capture_output=True, text=True, timeout=60)


def test_without_a_command_the_help_is_shown() -> None:
    done = edgeinfer()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == edgeinfer("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rnu"], "error: no command 'rnu'; did you mean 'run'?"),
        (["show"], "error: Missing argument 'MODEL'; see `edgeinfer show --help`"),
        (["du", "--foo"], "error: No such option '--foo'; see `edgeinfer du --help`"),
    ],
)
def test_a_mistyped_command_line_is_told_what_to_do(arguments: list[str], line: str) -> None:
    done = edgeinfer(*arguments)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (2, "", [line])


def test_a_traceback_changes_neither_the_message_nor_the_exit_code(tmp_path: Path) -> None:
    plain, debug = edgeinfer("show", f"{tmp_path}/no.gguf"), edgeinfer("--debug", "show", f"{tmp_path}/no.gguf")
    assert plain.returncode == debug.returncode == 2
    assert len(plain.stderr.splitlines()) == 1
    assert debug.stderr.startswith("Traceback")
    assert debug.stderr.splitlines()[-1] == plain.stderr.strip()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "tokenize",
        "pull",
        "list",
        "show",
        "rm",
        "du",
        "bench",
        "doctor",
        "eval",
        "eval ppl",
        "eval kld",
        "eval needle",
        "eval kv",
    ],
)
def test_each_help_fits_80_columns_and_explains_each_option(command: str) -> None:
    text = edgeinfer(*command.split(), "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    options = text.partition("Options:")[2].splitlines()
    assert options
    for line, below in zip(options, [*options[1:], ""], strict=True):
        if line.startswith("  -"):
            assert "  " in line.strip() or below.startswith(" " * 10), f"no help: {line}"
