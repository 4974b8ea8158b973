"""The same rows through Ray on two local workers: the same answers, the same files, the same rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import run_batch
from tests.batch.taped import read, texts, write
from tests.tiny import tiny_gguf

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from edgeinfer.batch.ray import run_batch
from dataclasses import asdict
options = json.loads(sys.argv[4])
result = run_batch(*sys.argv[1:4], workers=2, temperature=0.8, max_tokens=6, ignore_eos=True, **options)
print(json.dumps(asdict(result)))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


def on_ray(source: Path, output: Path, model: Path, **options: Any) -> dict[str, Any]:
    """In a process of its own, whose Ray ends with it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(source), str(output), str(model), json.dumps(options)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env=os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_two_workers_give_what_one_engine_gives(tiny: Path, tmp_path: Path) -> None:
    rows: list[Any] = [{"custom_id": f"r{number}", "prompt": f"Once upon {number}"} for number in range(40)]
    rows[7] = {"custom_id": "bad", "prompt": "x", "temprature": 1}
    rows[20] = {"custom_id": "long", "prompt": "x" * 5000}
    rows[21] = "{broken"
    source = write(tmp_path / "in.jsonl", rows)
    first = on_ray(source, tmp_path / "ray.jsonl", tiny, raw=True, max_rows=10)
    assert (first["done"], first["failed"], first["resumed"]) == (9, 1, 0)
    rest = on_ray(source, tmp_path / "ray.jsonl", tiny, raw=True, ordered=True)
    assert (rest["done"], rest["failed"], rest["resumed"]) == (37, 3, 9)
    here = run_batch(
        source,
        tmp_path / "here.jsonl",
        str(tiny),
        raw=True,
        temperature=0.8,
        max_tokens=6,
        ignore_eos=True,
        load_options={"isolate": False},
    )
    assert (here.done, here.failed) == (37, 3)
    assert answers(tmp_path / "ray.jsonl") == answers(tmp_path / "here.jsonl")
    lines = [int(row["id"].removeprefix("row-")) for row in read(tmp_path / "ray.jsonl")]
    assert lines == sorted(lines)
    reported = [
        {(row["custom_id"], row["error"]["code"]) for row in read(tmp_path / f"{name}.errors.jsonl")}
        for name in ("ray", "here")
    ]
    assert (
        reported[0]
        == reported[1]
        == {
            ("bad", "bad_request"),
            ("long", "context_limit"),
            ("row-22", "bad_request"),
        }
    )


def answers(path: Path) -> dict[str, str]:
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in read(path)}


def test_nothing_is_asked_of_ray_where_nothing_is_left(tiny: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ["{broken"])
    result = on_ray(source, tmp_path / "out.jsonl", tiny)
    assert (result["done"], result["failed"]) == (0, 1)
    assert texts(tmp_path / "out.jsonl") == {}
