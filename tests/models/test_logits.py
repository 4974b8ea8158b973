"""Tiny random models of every architecture against llama.cpp and against a numpy forward that shares no code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from tests.llama import llama_logits
from tests.oracle import Oracle
from tests.tiny import tiny_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3, heads wider than the model": ("qwen3", {"head_dim": 32}),
    "gemma3, past its window of 32": ("gemma3", {"layers": 7}),
    "an output matrix of its own": ("llama", {"tied": False}),
    "no grouped heads": ("llama", {"kv_heads": 4}),
    "linear": ("llama", {"metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}}),
    "a factor without a type": ("qwen2", {"metadata": {".rope.scaling.factor": 4.0}}),
    "llama3": ("llama", {"tensors": {"rope_freqs.weight": np.linspace(1, 8, 8)}}),
    "yarn llama": ("llama", {"metadata": YARN}),
    "yarn qwen2": ("qwen2", {"metadata": YARN}),
    "yarn qwen3": ("qwen3", {"metadata": YARN | {".rope.scaling.attn_factor": 1.3}}),
    "linear gemma3": (
        "gemma3",
        {"layers": 7, "metadata": {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}},
    ),
    "final soft cap": ("gemma3", {"metadata": {".final_logit_softcapping": 3.0}}),
}
"""Each runs past the original context of its scaling (64) and past Gemma's window."""
CODECS = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
          "iq3_s", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "tq2_0", "q1_0")  # fmt: skip


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single operations, which round nothing; tests/native holds the native path to the same models."""
    monkeypatch.setattr(ops, "fused", False)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 316, count).tolist()


def our_logits(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    backend = MLXBackend.load(path)
    (logits,) = backend.step([Chunk(backend.open(), tokens, "all")])
    found = np.array(logits)
    backend.close()
    return found


def mean_kl(ours: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """KL(ours || other) in nats, averaged over positions; row by row, since vocabularies are large."""
    total = 0.0
    for row, reference in zip(ours, other, strict=True):
        p, q = _log_softmax(row), _log_softmax(reference)
        total += float(np.sum(np.exp(p) * (p - q)))
    return total / len(ours)


def _log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


@pytest.mark.parametrize(("architecture", "options"), VARIANTS.values(), ids=VARIANTS.keys())
def test_float_models_agree_with_llama_cpp(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    """Logits have a spread of 1.5. llama.cpp looks its GELU up in a table of float16: 2⁻¹¹ of values up to about 4."""
    path = tiny_gguf(tmp_path / "m.gguf", architecture, **options)
    tokens = some_tokens(200)
    worst = np.abs(our_logits(path, tokens) - llama_logits(path, tokens)).max()
    assert worst < (1e-2 if architecture == "gemma3" else 5e-4)


@pytest.mark.parametrize(("architecture", "options"), VARIANTS.values(), ids=VARIANTS.keys())
def test_float_models_agree_with_numpy(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", architecture, **options)
    tokens = some_tokens(200)
    assert np.abs(our_logits(path, tokens) - Oracle(path).logits(tokens)).max() < 1e-4


def test_gemma3_27b_scales_its_queries_in_another_way(tmp_path: Path) -> None:
    """llama.cpp knows it by its 62 layers too; by the usual scale the difference would be of order 1."""
    path = tiny_gguf(tmp_path / "m.gguf", "gemma3", layers=62, head_dim=32)
    tokens = some_tokens(40)
    assert np.abs(our_logits(path, tokens) - llama_logits(path, tokens)).max() < 0.05


@pytest.mark.parametrize(
    ("architecture", "metadata"),
    [("gemma3", {".attn_logit_softcapping": 2.0}), ("llama", {".attention.sliding_window": 24})],
    ids=["attention soft cap", "sliding window of llama"],
)
def test_options_that_llama_cpp_does_not_read(tmp_path: Path, architecture: str, metadata: dict[str, Any]) -> None:
    """The published formulas are the only reference; the options must also change something."""
    tokens = some_tokens(100)
    path = tiny_gguf(tmp_path / "m.gguf", architecture, metadata=metadata)
    without = tiny_gguf(tmp_path / "without.gguf", architecture)
    found = our_logits(path, tokens)
    assert np.abs(found - Oracle(path).logits(tokens)).max() < 1e-4
    assert np.abs(found - our_logits(without, tokens)).max() > 0.1


@pytest.mark.parametrize("codec", CODECS)
def test_stored_weights_are_taken_exactly(tmp_path: Path, codec: str) -> None:
    """llama.cpp rounds activations to 8 bits or bfloat16 as it multiplies; numpy multiplies the decoded weights."""
    architecture = ARCHITECTURES[CODECS.index(codec) % len(ARCHITECTURES)]
    path = tiny_gguf(tmp_path / "m.gguf", architecture, codec=codec, hidden=256, head_dim=64, feed_forward=256)
    tokens = some_tokens(64)
    found = our_logits(path, tokens)
    assert np.abs(found - Oracle(path).logits(tokens)).max() < 1e-4
    assert mean_kl(found, llama_logits(path, tokens)) < 6e-3


def test_a_mix_of_codecs(tmp_path: Path) -> None:
    mix = {"token_embd": "q8_0", "attn_v": "q6_k", "attn": "q5_k", "ffn_down": "q4_1", "ffn": "q4_k"}
    path = tiny_gguf(tmp_path / "m.gguf", "qwen3", codec=mix, hidden=256, head_dim=64, feed_forward=256, tied=False)
    tokens = some_tokens(64)
    assert np.abs(our_logits(path, tokens) - Oracle(path).logits(tokens)).max() < 1e-4
