"""One model over two and three real processes: the tokens of one, step by step, with drafts and in batches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.errors import BackendUnavailable, BadRequest
from edgeinfer.loading.fit import Needs
from edgeinfer.loading.stage import Stage
from tests.tiny import tiny_gguf

ROOT = Path(__file__).parents[2]
LAUNCH = Path(sys.executable).with_name("mlx.launch")
PROGRAM = """
import json, sys
import edgeinfer
with edgeinfer.load(sys.argv[1], distributed=True, context=256) as llm:
    replies = [llm.generate(prompt, **json.loads(sys.argv[3])) for prompt in json.loads(sys.argv[2])]
    open(sys.argv[4], "w").write(json.dumps([[list(reply.ids) for reply in replies], llm.info.device]))
"""
PROMPTS = [[1, 5, 9, 12], [3, 4] * 20, [7]]
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 24, "ignore_eos": True}


def launched(size: int, folder: Path, model: Path, prompts: Any = PROMPTS, **options: Any) -> Any:
    """What the first of ``size`` processes wrote; every one of them must end in order."""
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM)
    arguments = [str(model), json.dumps(prompts), json.dumps({**OPTIONS, **options}), str(result)]
    command = [str(LAUNCH), "-n", str(size), "--backend", "ring", "--", sys.executable, str(program), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exited with code" not in done.stdout, done.stdout
    return json.loads(result.read_text())


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_make_the_tokens_of_one(size: int, tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "tiny.gguf", layers=3)
    with edgeinfer.load(str(model), backend="mlx", context=256) as llm:
        alone = [list(llm.generate(prompt, **OPTIONS).ids) for prompt in PROMPTS]
    together, device = launched(size, tmp_path, model)
    assert together == alone
    assert device.endswith(f"× {size}")


def test_a_process_reads_its_own_layers_alone() -> None:
    needs = Needs(weights=900, kv_per_token=90, scratch=10, trained_context=64)
    for size in (1, 2, 3, 7):
        stages = [Stage(rank, size) for rank in range(size)]
        assert [layer for stage in stages for layer in stage.layers(30)] == list(range(30))
        assert sum(stage.share(needs).weights for stage in stages) <= 900 < 900 + size
        assert all(len(stage.layers(30)) >= 4 for stage in stages)
    read = Stage(1, 3)
    assert (read.first, read.last) == (False, False)


def test_more_processes_than_layers_are_refused(tmp_path: Path) -> None:
    from edgeinfer.loading.loader import load

    with pytest.raises(BadRequest, match="1 layers: more processes"):
        load(tiny_gguf(tmp_path / "tiny.gguf", layers=1), stage=Stage(0, 2))


def test_outside_of_a_launch_it_says_how_to_start(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(BackendUnavailable, match=r"mlx\.launch -n 2"):
        edgeinfer.load(str(model), backend="mlx", distributed=True)
    with pytest.raises(BadRequest, match="distributed runs on MLX"):
        edgeinfer.load(str(model), backend="mlx", distributed=True, isolate=True)
    with pytest.raises(BadRequest, match="exact keys and values"):
        edgeinfer.load(str(model), backend="mlx", distributed=True, kv="k8v4")


def test_the_launcher_is_there() -> None:
    assert shutil.which(str(LAUNCH))
