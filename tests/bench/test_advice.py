"""What binds follows from the measurements, whatever they are; on a tiny model they are made for real."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.bench.advice import Advice, advise
from edgeinfer.bench.bandwidth import read_bandwidth
from edgeinfer.bench.formats import decode_by_depth
from edgeinfer.errors import BadRequest
from tests.bench.fakes import MACHINE
from tests.tiny import tiny_gguf

MADE_UP = Advice(
    model="m",
    machine=MACHINE,
    threads=2,
    depth=4000,
    kv="k8v4",
    bandwidth=10e9,
    weight_bytes=100_000_000,  # read in 10 ms
    bits=9.2,
    kv_bytes=20_000_000,  # read in 2 ms
    step=0.020,
    shallow=0.015,
    loop=0.001,
    formats={"k8v4": 0.020, "exact": 0.025},
    verify={1: 0.020, 2: 0.022, 4: 0.030, 8: 0.050},
)


def test_a_step_falls_into_its_parts() -> None:
    assert MADE_UP.parts == pytest.approx(
        {"weights": 0.015, "KV cache": 0.002, "attention": 0.003, "decode loop": 0.001}
    )
    assert MADE_UP.weight_read == pytest.approx(0.010)
    assert MADE_UP.tighter_quant == pytest.approx(0.0075)  # half of the bits, half of the weights' time
    assert replace(MADE_UP, bits=4.5).tighter_quant == 0


@pytest.mark.parametrize(
    ("changes", "binds"),
    [
        ({}, "weights"),
        ({"step": 0.060}, "attention"),
        ({"step": 0.060, "kv_bytes": 400_000_000}, "KV cache"),
        ({"loop": 0.019}, "decode loop"),
        ({"step": 0.014}, "weights"),  # noise: a deep step that was quicker than a shallow one
    ],
)
def test_what_takes_most_binds(changes: dict[str, float], binds: str) -> None:
    found = replace(MADE_UP, **changes)  # type: ignore[arg-type]
    assert found.binds == binds
    assert sum(found.parts.values()) - found.loop == pytest.approx(found.step)


def test_advice_is_measured(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", heads=2, kv_heads=1, head_dim=64, context=1024)
    steps: list[str] = []
    found = advise(path, 1000, rounds=1, threads=1, on_step=steps.append)
    assert (found.depth, found.kv) == (925, "k8v4")
    assert set(found.formats) == {"k8v4", "exact", "k4v4"}
    assert set(found.verify) == {1, 2, 4, 8}
    assert min(*found.formats.values(), *found.verify.values(), found.loop, found.shallow) > 0
    assert found.kv_bytes >= 2 * 200 * 512
    assert len(steps) == 6
    with pytest.raises(BadRequest, match="expected 76 tokens or more"):
        advise(path, 75)


def test_the_command_says_what_binds_and_what_would_help(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", heads=2, kv_heads=1, head_dim=64, context=1024)
    command = [sys.executable, "-m", "edgeinfer", "advise", str(path), "--context", "300", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "What binds: " in done.stdout
    changes = done.stdout.partition("how it is known")[2].splitlines()[1:]
    assert [line.split("  ")[0] for line in changes] == [
        "--kv exact", "--kv k4v4", "weights of 4.6 bits", "drafts, 2 rows a step", "drafts, 4 rows a step",
        "drafts, 8 rows a step",
    ]  # fmt: skip
    row = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120).stdout)
    assert row["binds"] in row["parts"]


def test_formats_decode_in_turn_at_each_depth(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", heads=2, kv_heads=1, head_dim=64, context=1024)
    progress: list[tuple[int, int]] = []
    found = decode_by_depth(path, ["exact", "k4v4"], [0, 900], 1, 1, lambda *at: progress.append(at))
    assert {name: list(depths) for name, depths in found.items()} == {"exact": [0, 900], "k4v4": [0, 900]}
    assert all(one.rate > 0 for depths in found.values() for one in depths.values())
    assert found["k4v4"][900].held < found["exact"][900].held
    assert progress[-1][0] == progress[-1][1]


def test_memory_is_read_at_a_plausible_speed() -> None:
    assert 1e8 < read_bandwidth(1) < 1e13
