"""Whole models whose keys and values the Metal kernels seal, and what happens where they cannot."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend, MLXSequence
from edgeinfer.errors import BadRequest
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading import loader
from edgeinfer.loading.registry import build
from edgeinfer.metal_kernels import warmup
from edgeinfer.nn.tensors import Outline
from edgeinfer.ops import host, metal
from edgeinfer.ops.paged import HostBlock
from tests.metal_kernels.emulator import Emulator
from tests.tiny import tiny_gguf

LONG = np.random.default_rng(1).integers(5, 300, 530).tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "tiny.gguf"
    return tiny_gguf(
        path, codec="q8_0", layers=1, hidden=32, heads=2, kv_heads=1, head_dim=64, feed_forward=32, context=1024
    )


def _fed(backend: MLXBackend, tokens: list[int], slices: int = 265) -> tuple[MLXSequence, np.ndarray]:
    """A sequence of ``tokens``, and the logits of the last."""
    sequence = backend.open(tokens)
    logits = np.empty(0)
    for start in range(sequence.length, len(tokens), slices):
        part = tokens[start : start + slices]
        logits = np.array(backend.step([Chunk(sequence, part, "last")])[0])[-1]
        sequence.accept(len(part))
    return sequence, logits


def _greedy(backend: MLXBackend, count: int) -> tuple[list[int], np.ndarray]:
    sequence, logits = _fed(backend, LONG)
    made, seen = [], [logits]
    for _ in range(count):
        made.append(int(seen[-1].argmax()))
        seen.append(np.array(backend.step([Chunk(sequence, made[-1:], "last")])[0])[-1])
        sequence.accept(1)
    return made, np.array(seen)


@pytest.mark.usefixtures("metal")
def test_a_model_gives_the_same_tokens_as_the_reference(
    tiny: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, logits = _greedy(MLXBackend.load(tiny, kv="k8v4"), 3)
    launched = {name.partition("<")[0].removeprefix("edgeinfer_") for name in on_metal.texts}
    assert mx.metal.is_available() or {"seal", "rotate", "sealed_part", "sealed_rows", "sealed_merge"} <= launched
    monkeypatch.setattr(metal, "page_bytes", lambda head_dim, widths: 0)  # numpy, over the same float16
    twin = MLXBackend.load(tiny, kv="k8v4")
    assert isinstance(twin._layout.new_block(), HostBlock)
    expected, exact = _greedy(twin, 3)
    assert tokens == expected
    assert np.abs(logits - exact).max() < 1e-4 * np.abs(exact).max()
    monkeypatch.setattr(ops, "here", host)
    assert tokens == _greedy(MLXBackend.load(tiny, kv="k8v4"), 3)[0]


@pytest.mark.usefixtures("metal")
def test_verifying_a_draft_gives_the_bits_of_single_steps(tiny: Path, on_metal: Emulator) -> None:
    """Around position 511, the first that sees a sealed page."""
    backend = MLXBackend.load(tiny, kv="k8v4")
    together, _ = _fed(backend, LONG[:508])
    alone, draft = together.fork(), LONG[508:515]
    rows = np.array(backend.step([Chunk(together, draft, "all")])[0])
    for token, row in zip(draft, rows, strict=True):
        single = np.array(backend.step([Chunk(alone, [token], "last")])[0])[0]
        alone.accept(1)
        np.testing.assert_array_equal(single.view(np.uint32), row.view(np.uint32))
    together.accept(2)  # takes back the page that the others had sealed
    again = np.array(backend.step([Chunk(together, draft[2:5], "all")])[0])
    np.testing.assert_array_equal(again.view(np.uint32), rows[2:5].view(np.uint32))


@pytest.mark.usefixtures("metal")
def test_a_conversation_goes_on_from_disk(tiny: Path, on_metal: Emulator, tmp_path: Path) -> None:
    first = MLXBackend.load(tiny, kv="k8v4", kept=tmp_path)
    sequence, _ = _fed(first, LONG)
    ahead = sequence.fork()
    exact = np.array(first.step([Chunk(ahead, [9], "last")])[0])
    sequence.close()
    first.close()
    second = MLXBackend.load(tiny, kv="k8v4", kept=tmp_path)
    reopened = second.open([*LONG, 9])
    assert reopened.length == len(LONG)
    for branch in (reopened.fork(), reopened):  # the second finds its pages in the pool
        found = np.array(second.step([Chunk(branch, [9], "last")])[0])
        np.testing.assert_array_equal(found.view(np.uint32), exact.view(np.uint32))


def _policy(path: Path, wanted: str) -> tuple[str, str]:
    with open_gguf(path) as file:
        chosen = loader.kv_policy(file, build(file, Outline), wanted)
    return chosen.name, chosen.reason


def test_formats_without_kernels(tiny: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "on_gpu", True)
    monkeypatch.setattr(ops, "device", lambda: "metal")
    monkeypatch.setattr(warmup, "sealed_obstacle", lambda form: "")
    assert _policy(tiny, "auto") == ("k8v4", "keys at 8 bits: the model has less than 4B parameters")
    assert _policy(tiny, "k4v4") == ("k4v4", "asked for")
    assert _policy(tiny, "q8_0") == ("q8_0", "asked for; no kernels for it here, so it is computed in numpy")
    monkeypatch.setattr(warmup, "sealed_obstacle", lambda form: "refused")
    assert _policy(tiny, "auto") == ("exact", "no kernels for k8v4 on metal")
    monkeypatch.setattr(ops, "device", lambda: "cuda")
    with pytest.raises(BadRequest, match="kv=k8v4: sealed pages have no kernels for cuda; use exact"):
        _policy(tiny, "k8v4")


def test_kernels_that_do_not_compile_are_named_once_and_numpy_takes_over(
    tiny: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**arguments: Any) -> Any:
        def call(**arguments: Any) -> Any:
            raise RuntimeError("[metal::Device] Unable to build metal library from source")

        return call

    monkeypatch.setattr(mx.fast, "metal_kernel", refuse)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M9", "architecture": "applegpu_g21x"})
    with caplog.at_level(logging.WARNING, "edgeinfer"):
        backends = [MLXBackend.load(tiny, kv="k8v4") for _ in range(2)]
    failed = "does not run on Apple M9 (applegpu_g21x): [metal::Device] Unable to build metal library from source"
    assert [record.message for record in caplog.records if "seal" in record.message] == [
        f"seal<64 channels, 8 and 4 bits> {failed}; heads of 64 in sealed pages are computed in numpy"
    ]
    tokens, _ = _greedy(backends[0], 2)
    monkeypatch.setattr(ops, "here", host)
    assert tokens == _greedy(MLXBackend.load(tiny, kv="k8v4"), 2)[0]
