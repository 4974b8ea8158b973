"""What a plan says is what loading takes, and it refuses what loading would refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import FORMATS
from edgeinfer.errors import BadRequest, MemoryLimit
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading import fit, planner
from edgeinfer.loading.planner import OURS, MemoryPlan, plan
from tests.tiny import tiny_gguf


def planned(path: Path, context: int = 0, kv: str = "auto") -> MemoryPlan:
    with open_gguf(path) as file:
        return plan(file, "a model", context, kv)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return tiny_gguf(path, heads=2, kv_heads=1, head_dim=64, context=16384)


@pytest.mark.parametrize("kv", ["exact", "k8v4", "k4v4"])
def test_a_plan_is_what_a_sequence_allocates(long: Path, kv: str) -> None:
    """Never less, and no more than what a step of a prompt and the growth of a buffer take."""
    found = planned(long, 4096, kv)
    backend = MLXBackend.load(long, 4096, kv=kv)
    assert backend.info.kv_bytes_per_token == found.formats[kv].per_token
    assert backend.info.weight_bytes == found.weights
    state = backend.open()
    for _ in range(8):
        backend.step([Chunk(state, [5] * 512, "none")])
        state.accept(512)
    exact = found.formats["exact"].per_token
    assert 0.75 * found.formats[kv].kv <= state.nbytes <= found.formats[kv].kv + 512 * exact


def test_longest_contexts_are_those_that_fit(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = planned(long).formats["exact"].total // 2
    for module in (fit, planner):
        monkeypatch.setattr(module, "available_memory", lambda: room)
    found = planned(long, 100)
    assert set(found.formats) == set(OURS)
    for name, each in found.formats.items():
        assert 0 <= each.longest <= 16384
        if 0 < each.longest < 16384:
            assert planned(long, each.longest, name).fits
            over = planned(long, each.longest + 1, name)
            assert not over.fits
            with pytest.raises(MemoryLimit, match=f"{each.longest + 1} tokens of context") as caught:
                over.check()
            assert caught.value.exit_code == 4
            with pytest.raises(MemoryLimit, match=f"{each.longest + 1} tokens of context"):
                MLXBackend.load(long, each.longest + 1, kv=name)
    longest = [each.longest for each in found.formats.values()]
    assert longest == sorted(longest)  # the smaller the format, the more fits


def test_other_peoples_formats_are_planned_when_asked_for(long: Path) -> None:
    found = planned(long, 1000, "turboquant4")
    assert found.formats["turboquant4"].per_token == 2 * FORMATS["turboquant4"].row_bytes(64)
    with pytest.raises(BadRequest, match="trained for 16384"):
        planned(long, 16385)
    with pytest.raises(BadRequest, match="did you mean"):
        planned(long, 100, "k8v5")


def test_the_command_says_it_and_ends_with_4(long: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edgeinfer", "plan", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run(long, "--context", 2048, "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["kv"], row["context"], row["fits"]) == ("k8v4", 2048, True)
    assert row["total"] == row["weights"] + row["scratch"] + row["formats"]["k8v4"]["kv"]
    assert [line.split()[:2] for line in run(long).stdout.splitlines() if line.startswith("*")] == [["*", "k8v4"]]
    huge = tiny_gguf(tmp_path / "huge.gguf", heads=4, kv_heads=4, head_dim=256, context=1 << 24)
    done = run(huge, "--context", 1 << 24, "--kv", "exact")
    assert done.returncode == 4
    assert "does not fit" in done.stdout
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert run(tmp_path / "none.gguf").returncode == 2
