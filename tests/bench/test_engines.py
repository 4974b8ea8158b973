"""Real engines in processes of their own, on tiny models; and what is said of those that fail."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bench import api
from edgeinfer.bench.plan import Case, Plan
from edgeinfer.bench.remote import CaseSkipped, EngineFailed, RemoteEngine
from edgeinfer.bench.run import bench
from edgeinfer.bench.worker import Job
from edgeinfer.errors import BadRequest, EdgeInferError, ModelNotFound
from tests.tiny import tiny_gguf

PLAN = Plan(depths=(0, 40), prefill=(32,), rows=(1, 4), rounds=2, threads=1, window=0.02, seed=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", codec="q8_0", context=256)


def job(path: Path, engine: str, **changes: object) -> Job:
    return Job(engine, path, 1, 128, 0.02, 60.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["edgeinfer", "llama-cpp"])
def test_an_engine_measures_every_kind_of_case_and_its_own_memory(tiny: Path, engine: str) -> None:
    with RemoteEngine(job(tiny, engine, flash=True)) as remote:
        for case in PLAN.cases:
            remote.warm(case)
            assert 0 < remote.sample(case).seconds < 5
        probe = remote.probe()
    assert probe.imports > 0
    assert probe.load is not None
    assert (probe.weights is None) == (engine == "llama-cpp")
    assert probe.prompted is not None
    assert 0 < probe.loaded <= probe.peak


def test_the_public_interface_decodes_and_does_nothing_else(tiny: Path) -> None:
    with RemoteEngine(job(tiny, "llm.generate")) as remote:
        for case in PLAN.cases[:2]:
            remote.warm(case)
            assert 0 < remote.sample(case).seconds < 5
        with pytest.raises(CaseSkipped):
            remote.warm(Case("rows", 4))


def test_a_killed_engine_is_named_as_such(tiny: Path) -> None:
    with RemoteEngine(job(tiny, "llama-cpp")) as remote:
        remote.warm(PLAN.cases[0])
        assert remote._process is not None
        os.kill(remote._process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="want of memory"):
            remote.sample(PLAN.cases[0])


def test_a_crash_quotes_the_last_words(tiny: Path) -> None:
    with (
        RemoteEngine(job(tiny, "no such engine")) as remote,
        pytest.raises(EngineFailed, match="exit code 1: KeyError"),
    ):
        remote.warm(PLAN.cases[0])


def test_an_engine_that_hangs_is_given_up(tiny: Path) -> None:
    with RemoteEngine(job(tiny, "edgeinfer"), answer_seconds=0.01) as remote, pytest.raises(EngineFailed, match="0 s"):
        remote.warm(PLAN.cases[0])


def test_a_model_that_one_engine_refuses_still_runs_on_the_other(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "odd.gguf", metadata={".expert_weights_scale": 2.0}, context=256)
    report = bench(path, replace(PLAN, rounds=1), ["llama-cpp"])
    assert "expert_weights_scale" in report.failures["edgeinfer"]
    decode = report.lines[0]
    assert decode.figures["llama-cpp"].spread is not None
    assert decode.figures["edgeinfer"].spread is None
    with pytest.raises(EdgeInferError, match=r"no engine could run odd\.gguf: .*expert_weights_scale"):
        bench(path, PLAN)


@pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is not None, reason="mlx-lm is installed")
def test_without_mlx_lm_its_column_names_the_command(tiny: Path) -> None:
    report = bench(tiny, Plan(depths=(0,), prefill=(), rows=(), rounds=1, window=0.01), ["mlx-lm"])
    assert report.failures["mlx-lm"] == "mlx-lm is not installed; run: pip install 'edgeinfer[bench]'"
    assert report.lines[0].figures["edgeinfer"].spread is not None


def test_lengths_beyond_the_context_and_unknown_files_are_refused_before_anything_starts(tiny: Path) -> None:
    with pytest.raises(BadRequest, match="context is 256 tokens, expected at most 189"):
        bench(tiny, Plan(depths=(0, 200)), asked=frozenset({"depths"}))
    with pytest.raises(ModelNotFound):
        bench(tiny.parent / "none.gguf", PLAN)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeinfer", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command_against_llama_cpp_as_json_and_as_a_table(tiny: Path) -> None:
    common = ("--prefill", "32", "--rounds", 1, "--threads", 1, "--seed", 5, "--quick")
    done = run(tiny, "--against", "llama-cpp", *common, "--depths", "40", "--rows", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["settings"]["seed"] == 5
    assert [engine["failed"] for engine in found["engines"]] == [None, None]
    for line in found["lines"]:
        for figure in line["figures"].values():
            assert "median" in figure or figure["missing"]
    compared = [line["label"] for line in found["lines"] if "llama-cpp" in line["ratios"]]
    assert {"depth 40", "llm.generate", "32 tokens", "4 rows", "import", "and tokenizer", "peak"} <= set(compared)
    done = run(tiny, *common, "--rows", "1")
    assert done.returncode == 0, done.stderr
    assert "decode, tokens/s" in done.stdout
    assert "rough" in done.stdout
    assert "seed 5" in done.stdout
    assert "round 1 of 1" in done.stderr
    table = done.stdout.split("\n\n")[1]
    assert all(len(line) <= 80 for line in table.splitlines())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--against", "vllm"), "against='vllm': no such engine"),
        (("--depths", "0,x"), "depths='0,x'"),
        (("--depths", "5000"), "context is 256 tokens"),
        (("--rounds", "0"), "rounds=0"),
        (("--threads", "-3"), "threads=-3"),
        (("--rows", ""), "rows=''"),
        (("--rows", "many"), "rows='many'"),
        (("--seed", "x"), "seed"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(tiny: Path, arguments: tuple[str, ...], named: str) -> None:
    done = run(tiny, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_public_api_decodes_plainly(tiny: Path) -> None:
    """A peer that drafts nothing is compared with decoding that drafts nothing."""
    subject = api.load(job(tiny, "llm.generate"))
    asked: list[dict[str, Any]] = []
    generate = subject._llm.generate
    subject._llm.generate = lambda *given, **options: (asked.append(options), generate(*given, **options))[1]  # type: ignore[method-assign]
    try:
        assert subject.decode(4) > 0
    finally:
        subject.close()
    assert asked[0]["speculation"] is False
