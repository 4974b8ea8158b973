"""What the README shows works: its Python runs, its commands exist, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.cli import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.real_model
@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, smollm2_path: Path, own_home: Path, tmp_path: Path) -> None:
    models = smollm2_path.parents[1]
    (own_home / "edgeinfer").mkdir()
    (own_home / "edgeinfer" / "config.toml").write_text(f"models = {str(models)!r}\n")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


def test_the_commands_it_names_exist() -> None:
    named = set(re.findall(r"edgeinfer ([a-z]+)\b", README)) - {"run"}
    assert named <= set(COMMANDS)
    for command in COMMANDS:
        assert re.search(rf"`(edgeinfer )?{command}\b", README), command


def test_the_first_command_stands_early_and_the_page_is_short() -> None:
    lines = README.splitlines()
    assert next(number for number, line in enumerate(lines) if "edgeinfer run" in line) < 25
    assert len(lines) < 150


def test_the_line_for_the_tests_is_the_one_of_ci() -> None:
    line = next(block.strip() for block in blocks("bash") if "pytest" in block)
    ci = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    assert line in ci.replace("pip install -q", "pip install")
