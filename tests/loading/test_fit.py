"""How much a model needs, and how much context it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer import ops
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.errors import BadRequest, MemoryLimit
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading import fit
from edgeinfer.loading.fit import Needs, check_fit, checked_context, default_context, needs, obstacle
from edgeinfer.loading.loader import load
from tests.tiny import tiny_gguf

GIB = 1 << 30


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path whose sizes follow from the shapes alone."""
    monkeypatch.setattr(ops, "fused", False)


def test_needs_are_what_loading_takes(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen3", codec="q4_0", layers=3, kv_heads=1, head_dim=32)
    with open_gguf(path) as file:
        wanted = needs(file)
    loaded = load(path)
    assert wanted.weights == 4 * loaded.parameters
    assert wanted.kv_per_token == 3 * 2 * 1 * 32 * 4
    assert wanted.trained_context == loaded.context == 512
    info = MLXBackend.load(path).info
    assert (info.weight_bytes, info.kv_bytes_per_token) == (wanted.weights, wanted.kv_per_token)


@pytest.mark.parametrize(
    ("trained", "available", "expected"),
    [
        (2048, 64 * GIB, 2048),  # what it was trained for
        (131072, 640 * GIB, 32768),  # no more than that by itself
        (131072, 4 * GIB, 8192),  # a quarter of the memory
        (131072, GIB // 1024, 512),  # never less than a short chat
        (256, GIB // 1024, 256),
    ],
)
def test_default_context(trained: int, available: int, expected: int) -> None:
    assert default_context(Needs(GIB, 128 << 10, 0, trained), available) == expected


def test_an_asked_for_context_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(tiny_gguf(tmp_path / "m.gguf")) as file:
        wanted = needs(file)
        assert checked_context(file, wanted, 100) == 100
        with pytest.raises(BadRequest, match="trained for 512 tokens"):
            checked_context(file, wanted, 513)
        assert obstacle(file) is None
        monkeypatch.setattr(fit, "available_memory", lambda: wanted.total(200))
        assert checked_context(file, wanted, 200) == 200
        with pytest.raises(MemoryLimit, match="201 tokens of context") as caught:
            checked_context(file, wanted, 201)
        assert caught.value.needed - caught.value.available == wanted.kv_per_token
        assert caught.value.exit_code == 4
        assert "are free" in str(obstacle(file))


def test_names_and_quantizations(tmp_path: Path) -> None:
    named = load(tiny_gguf(tmp_path / "a.gguf", metadata={"general.file_type": 15, "general.name": "Some model"}))
    assert (named.name, named.quantization) == ("Some model", "Q4_K_M")
    nameless = load(tiny_gguf(tmp_path / "b.gguf", codec={"ffn": "q5_1"}, metadata={"general.name": None}))
    assert (nameless.name, nameless.quantization) == ("b", "Q5_1")


@pytest.mark.parametrize(
    ("weights", "available", "named"),
    [
        (40 * 10**9, 8 * 10**9, "qwen3-8b"),
        (40 * 10**9, 300 * 10**6, "gemma3-270m"),
        (40 * 10**9, 50 * 10**6, None),
        (90 * 10**6, 50 * 10**6, None),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(weights: int, available: int, named: str | None) -> None:
    with pytest.raises(MemoryLimit, match="take a smaller model") as caught:
        check_fit("big.gguf", weights, weights + 10**6, 512, available)
    assert (f"such as {named}," in str(caught.value)) == (named is not None)
