"""Tiny random models of the larger families against llama.cpp: logits, tokens, and which experts were chosen."""

from __future__ import annotations

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
from tests.architectures import FAMILIES, VARIANTS, tiny
from tests.llama import llama_logits, llama_routing
from tests.models.test_logits import mean_kl, our_logits, some_tokens

COUNT = 150
"""Past the original context of scaled models, twice over, and past every window."""
SPARSE = [name for name, family in FAMILIES.items() if ".expert_count" in family.keys]


@pytest.fixture(params=["composed", "native"])
def path_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Single operations, which round nothing, and the native path, which keeps keys and values in float16."""
    if request.param == "native" and not ops.fused:
        pytest.skip("the native path is not built")
    monkeypatch.setattr(ops, "fused", request.param == "native")
    return str(request.param)


@pytest.mark.parametrize(("architecture", "keys"), VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_agree_with_llama_cpp(tmp_path: Path, path_taken: str, architecture: str, keys: dict[str, Any]) -> None:
    """Logits have a spread of 1.5."""
    path = tiny(tmp_path / "m.gguf", architecture, keys)
    tokens = some_tokens(COUNT)
    ours, theirs = our_logits(path, tokens), llama_logits(path, tokens)
    exact = path_taken == "composed"
    assert mean_kl(ours, theirs) < (1e-8 if exact else 1e-5)
    assert np.abs(ours - theirs).max() < (1e-3 if exact else 0.05)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_greedy_tokens_are_those_of_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Our own 40 tokens behind a prompt, one step each, teacher-forced through llama.cpp."""
    monkeypatch.setattr(ops, "fused", False)
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
    assert np.argmax(llama_logits(path, tokens)[49:-1], axis=-1).tolist() == tokens[50:]


@pytest.mark.parametrize("architecture", SPARSE)
def test_experts_are_those_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """Every token, every layer, in the same order of their scores."""
    monkeypatch.setattr(ops, "fused", False)
    path = tiny(tmp_path / "m.gguf", architecture, seed=2)
    tokens = some_tokens(64, seed=6)
    ours: list[NDArray[np.int32]] = []
    choose = Routing.choose

    def recorded(self: Routing, logits: mx.array, bias: mx.array | None = None) -> tuple[mx.array, mx.array]:
        chosen, weights = choose(self, logits, bias)
        ours.append(np.array(chosen))
        return chosen, weights

    monkeypatch.setattr(Routing, "choose", recorded)
    our_logits(path, tokens)
    theirs = llama_routing(path, tokens)
    assert len(ours) == len(theirs) > 0
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
