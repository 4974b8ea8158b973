"""``edgeinfer bench speculation`` on a tiny model: every figure is there, and drafts change no text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.bench.speculation import ROWS, STORE, SUFFIX, bench_speculation, worst_window
from edgeinfer.bench.tasks import SCHEMA_TASK, TASKS
from edgeinfer.bench.ties import NEAR_TIE, first_difference, margin_at
from edgeinfer.cli.benchspeculation import tables_of
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", context=2048)


def test_the_curve_and_every_task_with_every_drafter(tiny: Path, tmp_path: Path) -> None:
    doing: list[str] = []
    measured = bench_speculation(tiny, rounds=2, tokens=96, folder=tmp_path, on_step=doing.append)
    assert tuple(measured.verify) == ROWS
    assert all(spread.low > 0 and spread.count == 3 for spread in measured.verify.values())
    assert [(each.task, each.drafter) for each in measured.outcomes] == [
        *((task, drafter) for task in TASKS for drafter in (SUFFIX, STORE, "layer_skip")),
        *((SCHEMA_TASK, drafter) for drafter in (SUFFIX, "structured")),
    ]
    assert all(each.worst > 0 and 0 <= each.controller < 1 for each in measured.outcomes)
    assert all(each.same for each in measured.outcomes)
    assert all(each.accepted <= each.drafted for each in measured.outcomes)
    assert doing == ["verifying rows", *TASKS, SCHEMA_TASK]
    shown = tables_of(measured)
    for word in (*TASKS, SCHEMA_TASK, SUFFIX, STORE, "layer_skip", "same", "worst", "rows", "speedup"):
        assert word in shown
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_where_drafts_change_a_text_the_difference_is_weighed(tiny: Path) -> None:
    """The rows of a step on llama.cpp depend on each other by rounding: there a text may turn at a near-tie."""
    measured = bench_speculation(tiny, backend="llama.cpp", threads=1, rounds=2, tokens=64)
    for each in measured.outcomes:
        assert each.same is (each.different == 0)
        assert each.near_ties == each.different
        assert each.margin <= NEAR_TIE


def test_differences_are_found_and_weighed() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    top = ((7, -0.5), (8, -0.53), (9, -3.0))
    assert margin_at(top, 8, 7) == pytest.approx(0.03)
    assert margin_at(top, 7, 9) > NEAR_TIE
    assert margin_at(top, 7, 1) > NEAR_TIE


def test_it_is_a_command_of_its_own_beside_bench(tiny: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "edgeinfer", "bench", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    done = run("speculation", tiny, "--rounds", 1, "--tokens", 8, "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"model", "backend", "machine", "rounds", "verify", "outcomes"}
    assert "bench speculation [OPTIONS] [MODEL]" in run("speculation", "--help").stdout
    assert "--against" in run("--help").stdout


def test_the_worst_window_is_the_slowest_stretch_of_the_usual_round() -> None:
    plain = {number: [float(token) for token in range(2000)] for number in range(3)}
    slow = [token * 0.5 if token < 1000 else 500 + (token - 1000) * 1.25 for token in range(2000)]
    assert worst_window(plain, {number: slow for number in range(3)}) == pytest.approx(0.8)
    assert worst_window(plain, {0: slow, 1: plain[0], 2: plain[0]}) == pytest.approx(1.0)
    assert worst_window({0: [0, 1, 2]}, {0: [0, 0.5, 1.0]}) == pytest.approx(2.0)
    assert worst_window({0: [0]}, {0: [0]}) == 1.0
