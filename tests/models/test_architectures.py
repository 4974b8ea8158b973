"""Tiny random models of the larger families against llama.cpp: logits, tokens, and which experts were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.nn.moe import Routing
from edgeinfer.ops import host, plain
from tests.architectures import FAMILIES, VARIANTS, tiny
from tests.llama import llama_logits, llama_routing
from tests.makers import YARN
from tests.models.test_logits import mean_kl, our_logits, some_tokens

COUNT = 150
"""Past the original context of scaled models, twice over, and past every window."""
ONE_EACH = [name for name in FAMILIES if name != "deepseek2 lite"]  # 26 layers long, and else as the other one
SPARSE = [name for name in ONE_EACH if ".expert_count" in FAMILIES[name].keys]


BOUNDS = {
    ("composed", False): (1e-8, 1e-3),
    ("composed", True): (1e-5, 0.05),
    ("native", False): (2e-5, 0.1),
    ("native", True): (1e-4, 0.5),
}
"""KL and the largest difference of logits, whose spread is 1.5; apart for models with GELU. llama.cpp looks that up in
a table of float16, whose steps make of a change of gates by a millionth just such a difference."""


pick = Routing.pick


class Recorded:
    """The experts that routers choose from now on, or, one after the other, those they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Sequence[NDArray[np.int32]] = ()) -> None:
        self.chosen: list[NDArray[np.int32]] = []
        coming = iter(told)

        def recorded(routing: Routing, wanted: mx.array) -> mx.array:
            if told:
                return mx.array(next(coming))
            chosen = pick(routing, wanted)
            self.chosen.append(np.array(chosen))
            return chosen

        monkeypatch.setattr(Routing, "pick", recorded)


def tabled_gelu(gate: NDArray[np.float32], up: NDArray[np.float32]) -> NDArray[np.float32]:
    """As llama.cpp has it: a table by the gate in float16, of results in float16."""
    x = gate.astype(np.float16).astype(np.float64)
    table = (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(np.float16)
    return np.where(np.abs(gate) < 10, table, np.maximum(gate, 0)).astype(np.float32) * up


@pytest.fixture(params=["composed", "native"])
def path_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Single operations, which round nothing, and the native path, which keeps keys and values in float16."""
    if request.param == "native" and not ops.fused:
        pytest.skip("the native path is not built")
    monkeypatch.setattr(ops, "fused", request.param == "native")
    monkeypatch.setitem(host._GATES, "gelu", tabled_gelu)
    return str(request.param)


@pytest.mark.parametrize(("architecture", "keys"), VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_agree_with_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path_taken: str, architecture: str, keys: dict[str, Any]
) -> None:
    path = tiny(tmp_path / "m.gguf", architecture, keys)
    tokens = some_tokens(COUNT)
    if path_taken == "native":  # with the experts of the other path, since a rounding exchanges some
        monkeypatch.setattr(ops, "fused", False)
        exact = Recorded(monkeypatch)
        our_logits(path, tokens)
        Recorded(monkeypatch, exact.chosen)
        monkeypatch.setattr(ops, "fused", True)
    ours, theirs = our_logits(path, tokens), llama_logits(path, tokens)
    kl, worst = BOUNDS[path_taken, architecture.startswith("gemma")]
    assert mean_kl(ours, theirs) < kl
    assert np.abs(ours - theirs).max() < worst


def test_experts_in_mxfp4(tmp_path: Path, path_taken: str) -> None:
    """Those of the last layer: llama.cpp rounds activations to 8 bits for them, which routers behind would turn into
    other experts."""
    codec = {f"blk.2.ffn_{name}_exps.weight": "mxfp4" for name in ("gate", "up", "down")}
    path = tiny(tmp_path / "m.gguf", "gpt-oss", YARN, codec=codec)
    tokens = some_tokens(COUNT)
    assert mean_kl(our_logits(path, tokens), llama_logits(path, tokens)) < 1e-3


@pytest.mark.parametrize("architecture", ONE_EACH)
def test_what_a_gpu_without_our_kernels_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """MLX alone, here on its CPU build, which sums in float16 too; experts are those of the path without rounding."""
    monkeypatch.setattr(ops, "fused", False)
    path = tiny(tmp_path / "m.gguf", architecture)
    tokens = some_tokens(COUNT)
    exact, made = Recorded(monkeypatch), our_logits(path, tokens)
    Recorded(monkeypatch, exact.chosen)
    monkeypatch.setattr(ops, "here", plain)
    assert mean_kl(our_logits(path, tokens), made) < 1e-3


@pytest.mark.parametrize("architecture", ONE_EACH)
def test_greedy_tokens_are_those_of_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Our own 40 tokens behind a prompt, one step each, teacher-forced through llama.cpp."""
    monkeypatch.setattr(ops, "fused", False)
    monkeypatch.setitem(host._GATES, "gelu", tabled_gelu)
    path = tiny(tmp_path / "m.gguf", architecture, seed=1)
    tokens = some_tokens(50, seed=5)
    backend = MLXBackend.load(path)
    sequence = backend.open()
    fresh = tokens
    for _ in range(40):
        (logits,) = backend.step([Chunk(sequence, fresh)])
        sequence.accept(len(fresh))
        fresh = [int(mx.argmax(logits[0]).item())]
        tokens = [*tokens, *fresh]
    backend.close()
    theirs = llama_logits(path, tokens)[49:-1]
    gaps = theirs.max(axis=-1) - theirs[np.arange(40), tokens[50:]]
    assert gaps.max() <= (2 * BOUNDS["composed", True][1] if architecture.startswith("gemma") else 0)
    assert np.mean(gaps == 0) > 0.9


@pytest.mark.parametrize("architecture", SPARSE)
def test_experts_are_those_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """Every token, every layer, in the same order of their scores."""
    monkeypatch.setattr(ops, "fused", False)
    path = tiny(tmp_path / "m.gguf", architecture, seed=2)
    tokens = some_tokens(64, seed=6)
    ours = Recorded(monkeypatch)
    our_logits(path, tokens)
    theirs = llama_routing(path, tokens)
    assert len(ours.chosen) == len(theirs) > 0
    assert all(np.array_equal(a, b) for a, b in zip(ours.chosen, theirs, strict=True))
