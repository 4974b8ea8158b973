"""The checkpoint that mlx-lm is given holds the very model of the file."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bench.checkpoint import checkpoint_bytes, write_checkpoint
from edgeinfer.errors import CorruptFile, DiskLimit, UnsupportedModel
from tests.bench.published import Published
from tests.oracle import Oracle
from tests.tiny import tiny_gguf

TOKENS = [5, 17, 300, 42, 42, 7, 250, 1] * 6  # longer than the tiny Gemma's window
LLAMA3_FACTORS = np.array([1, 1, 1.5, 2, 8, 8, 8, 8], np.float32)


def llama3_factors(base: float, head_dim: int, factor: float) -> np.ndarray:
    """What llama.cpp's converter stores for Llama 3.1 and later, as its source computes it."""
    factors = []
    for frequency in base ** -(np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {"codec": "q4_1"}),
        ("llama", {"codec": "q8_0", "tied": False, "metadata": {".rope.freq_base": 1e5}}),
        (
            "llama",
            {"metadata": {".rope.freq_base": 5e5}, "tensors": {"rope_freqs.weight": llama3_factors(5e5, 16, 32)}},
        ),
        ("llama", {"metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}}),
        ("qwen2", {"codec": "q5_0"}),
        ("qwen3", {"codec": "f16", "head_dim": 32}),
        ("gemma3", {"codec": "q4_0", "layers": 7}),
        ("gemma3", {"layers": 7, "metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}}),
    ],
)
def test_the_checkpoint_gives_the_logits_of_the_file(tmp_path: Path, architecture: str, options: Any) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", architecture, seed=3, **options)
    write_checkpoint(path, tmp_path)
    model = Published(tmp_path)
    found, expected = model.logits(TOKENS), Oracle(path).logits(TOKENS)
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    assert model.used == set(model.weights), "every tensor has its place"
    assert sum(weight.size * 4 for weight in model.weights.values()) == pytest.approx(checkpoint_bytes(path), abs=64)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"metadata": {".expert_count": 4}}, "expert_count"),
        ({"metadata": {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0}}, "rope.scaling.type"),
        ({"tensors": {"rope_freqs.weight": LLAMA3_FACTORS}}, "rope_freqs.weight"),
        ({"tensors": {"blk.0.attn_sinks.weight": np.ones(4)}}, "attn_sinks"),
        ({"metadata": {"general.architecture": "mamba"}}, "general.architecture"),
    ],
)
def test_what_a_checkpoint_could_not_say_is_refused(tmp_path: Path, options: Any, named: str) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises((UnsupportedModel, CorruptFile), match=named):
        write_checkpoint(path, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 30, 1 << 30, 1000))
    with pytest.raises(DiskLimit, match="set TMPDIR") as caught:
        write_checkpoint(path, tmp_path)
    assert caught.value.available == 1000
    assert not (tmp_path / "model.safetensors").exists()
