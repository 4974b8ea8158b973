"""An extension that is missing or fits another version is named, and everything works without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import edgeinfer.native
from edgeinfer.native import _load, sources
from tests.tiny import tiny_gguf


def missing(name: str) -> Any:
    raise ModuleNotFoundError(name=name)


def unresolved(name: str) -> Any:
    raise ImportError("undefined symbol: _ZN3mlx4core5array8set_dataENS0_9allocator4DataE")


def foreign_arrays(name: str) -> Any:
    def argmax(logits: mx.array) -> mx.array:
        raise TypeError("argmax(): incompatible function arguments")

    return SimpleNamespace(argmax=argmax)


def nonsense(name: str) -> Any:
    return SimpleNamespace(argmax=lambda logits: mx.array([0]))


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (missing, "was not built; to get it, reinstall"),
        (unresolved, r"was built for mlx 0\.0\.1 and 0\.\S+ is installed"),
        (foreign_arrays, r"was built for mlx 0\.0\.1 and"),
        (nonsense, "computes nonsense"),
    ],
)
def test_why_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: Callable[[str], Any], message: str
) -> None:
    built_for = tmp_path / "built_for.txt"
    built_for.write_text("0.0.1\n")
    monkeypatch.setattr(edgeinfer.native, "NOTE", built_for)
    monkeypatch.setattr(edgeinfer.native, "import_module", load)
    extension, obstacle = _load()
    assert extension is None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(obstacle)


def test_one_of_older_sources_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built_for = tmp_path / "built_for.txt"
    monkeypatch.setattr(edgeinfer.native, "NOTE", built_for)
    monkeypatch.setattr(edgeinfer.native, "import_module", nonsense)
    built_for.write_text(sources.note(version("mlx")))
    assert "computes nonsense" in _load()[1]  # it was tried
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(edgeinfer.native, "fingerprint", sources.fingerprint)
    assert sources.fingerprint() == ""  # as in a wheel
    assert "computes nonsense" in _load()[1]
    header = tmp_path / "edgeinfer" / "native" / "core" / "calls.h"
    header.parent.mkdir(parents=True)
    (tmp_path / sources.SOURCES[0]).write_text("project()")
    made = []
    for text in ("int rows;", "int columns;"):
        header.write_text(text)
        made.append(sources.fingerprint())
        extension, obstacle = _load()
        assert extension is None
        assert "built from other sources than those beside it; to build it again: pip install -e ." in obstacle
    assert made[0] != made[1]


def test_a_model_runs_without_it(tmp_path: Path) -> None:
    """In a process in which the extension cannot be imported."""
    path = tiny_gguf(tmp_path / "m.gguf", codec="q8_0")
    program = f"""
import sys
sys.modules["edgeinfer.native._primitives"] = None
from pathlib import Path
from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
backend = MLXBackend.load(Path({str(path)!r}))
print(ops.fused, backend.step([Chunk(backend.open(), [1, 2, 3])])[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == ["False", "(1,", "320)"]
