"""Importing stays light, and the one-way rule holds and can be broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"mlx", "numpy", "textual", "transformers", "torch", "llama_cpp", "gguf", "tokenizers", "jinja2", "httpx2"}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import edgeinfer",
        "import edgeinfer.cli",
        "import edgeinfer.cli.run, edgeinfer.cli.pull, edgeinfer.cli.list, edgeinfer.cli.doctor",
        "import edgeinfer.formats.gguf",
        "import edgeinfer.settings, edgeinfer.types, edgeinfer.catalog",
        "from edgeinfer import SamplingParams",
    ],
)
def test_importing_it_stays_light(statement: str) -> None:
    assert not modules_after(statement) & HEAVY


def test_reading_and_tokenizing_need_no_mlx() -> None:
    loaded = modules_after("import edgeinfer.quant.kquants, edgeinfer.tokenizer.vocabulary, edgeinfer.hub.sources")
    assert "mlx" not in loaded


def run_linter(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([linter, "--no-cache"], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the source that a test may spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "edgeinfer", tmp_path / "edgeinfer", symlinks=True)
    for folder in ("app", "models", "metal_kernels"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_layers_are_kept(checkout: Path) -> None:
    result = run_linter(checkout)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("edgeinfer/quant/codec.py", "import edgeinfer.llm", "One way"),
        ("edgeinfer/errors.py", "import edgeinfer.types", "One way"),
        ("models/llama.py", "import edgeinfer.generation.engine", "One way"),
        ("edgeinfer/formats/gguf.py", "import mlx.core", "no MLX"),
        ("edgeinfer/hub/sources.py", "import tqdm", "draws nothing"),
        ("edgeinfer/generation/engine.py", "import llama_cpp", "knows llama.cpp"),
    ],
)
def test_a_planted_import_breaks_its_contract(checkout: Path, file: str, line: str, contract: str) -> None:
    target = checkout / file
    target.write_text(target.read_text() + f"\n{line}\n")
    result = run_linter(checkout)
    assert result.returncode == 1
    assert any(contract in text for text in result.stdout.splitlines() if text.endswith("BROKEN"))
