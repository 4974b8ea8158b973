"""Whole models through the Metal kernels, and what happens where a kernel cannot be used."""

from __future__ import annotations

import logging
from mmap import mmap
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.errors import CorruptFile, EngineClosed
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading.loader import load
from edgeinfer.ops import adopt, host, metal, plain
from edgeinfer.quant.codec import CODECS
from tests.architectures import tiny
from tests.metal_kernels.emulator import Emulator
from tests.oracle import Oracle
from tests.tiny import tiny_gguf

PROMPT = [5, 80, 17, 256, 300, 41]


def _greedy(backend: MLXBackend, count: int) -> tuple[list[int], np.ndarray]:
    """Tokens, and the logits of each."""
    sequence, tokens, seen = backend.open(), list(PROMPT), []
    made: list[int] = []
    while len(made) < count:
        logits = np.array(backend.step([Chunk(sequence, tokens, "last")])[0])[-1]
        sequence.accept(len(tokens))
        seen.append(logits)
        tokens = [int(logits.argmax())]
        made += tokens
    return made, np.array(seen)


@pytest.mark.usefixtures("metal")
@pytest.mark.parametrize(("architecture", "codec"), [("llama", "q4_k"), ("gemma3", "q8_0")])
def test_a_model_gives_the_same_tokens_as_the_oracle(
    tmp_path: Path, on_metal: Emulator, architecture: str, codec: str
) -> None:
    path = tiny_gguf(
        tmp_path / "tiny.gguf", architecture, codec=codec, hidden=256, head_dim=64, feed_forward=256, context=256
    )
    backend = MLXBackend.load(path)
    tokens, logits = _greedy(backend, 6)
    expected = Oracle(path).logits([*PROMPT, *tokens[:-1]])[len(PROMPT) - 1 :]
    assert tokens == expected.argmax(-1).tolist()
    assert np.abs(logits - expected).max() < 2e-3 * np.abs(expected).max()
    launched = {name.partition("<")[0].removeprefix("edgeinfer_") for name in on_metal.texts}
    assert mx.metal.is_available() or {"rows", "qmv", "qmv_joined", "qmv_gated", "attention_part"} <= launched


@pytest.mark.usefixtures("metal")
def test_a_mixture_of_experts_gives_the_same_tokens_as_in_numpy(
    tmp_path: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny(tmp_path / "tiny.gguf", "qwen3moe", codec="q8_0", context=256)
    tokens, logits = _greedy(MLXBackend.load(path), 4)
    monkeypatch.setattr(ops, "here", host)
    expected, exact = _greedy(MLXBackend.load(path), 4)
    assert tokens == expected
    assert np.abs(logits - exact).max() < 2e-3 * np.abs(exact).max()
    assert mx.metal.is_available() or any("qmv_experts" in name for name in on_metal.texts)


@pytest.mark.usefixtures("metal")
def test_verifying_a_draft_gives_the_bits_of_single_steps(tmp_path: Path, on_metal: Emulator) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", codec="q8_0", head_dim=64)
    backend = MLXBackend.load(path)
    together, alone = backend.open(), backend.open()
    rows = np.array(backend.step([Chunk(together, PROMPT, "all")])[0])
    for token, row in zip(PROMPT, rows, strict=True):
        single = np.array(backend.step([Chunk(alone, [token], "last")])[0])[0]
        alone.accept(1)
        np.testing.assert_array_equal(single.view(np.uint32), row.view(np.uint32))


def test_a_kernel_that_does_not_compile_is_named_once_and_the_twin_takes_over(
    tmp_path: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**arguments: Any) -> Any:
        def call(**arguments: Any) -> Any:
            raise RuntimeError("[metal::Device] Unable to build metal library from source\nprogram_source:1: error")

        return call

    monkeypatch.setattr(mx.fast, "metal_kernel", refuse)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M9", "architecture": "applegpu_g21x"})
    path = tiny_gguf(tmp_path / "tiny.gguf", codec="q8_0", head_dim=64, context=128)
    failed = "does not run on Apple M9 (applegpu_g21x): [metal::Device] Unable to build metal library from source"
    with caplog.at_level(logging.WARNING, "edgeinfer"):
        backend = MLXBackend.load(path)
        tokens, _ = _greedy(backend, 3)
    assert [record.message for record in caplog.records] == [
        f"rows<q8_0> {failed}; q8_0 is multiplied by MLX's own kernels",
        f"attention<64 channels, 1 rows> {failed}; attention over heads of 64 is computed by MLX's own kernels",
    ]
    assert tokens == Oracle(path).logits([*PROMPT, *tokens[:-1]])[len(PROMPT) - 1 :].argmax(-1).tolist()


def test_a_shape_without_a_kernel_takes_the_twin(on_metal: Emulator) -> None:
    codec = CODECS["f16"]
    blocks = np.random.default_rng(0).standard_normal((3, 12)).astype(np.float16).view(np.uint8)
    assert isinstance(metal.prepare(ops.PackedWeight(codec, blocks, (3, 12)), wide=False), plain.HalfWeight)
    assert not on_metal.texts


def test_blocks_are_shared_by_whole_pages_where_mlx_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Mac does, with a stand-in for the one call that only a Mac answers."""
    windows: list[np.ndarray] = []

    def share(window: np.ndarray, copy: bool) -> mx.array:
        assert not copy
        windows.append(window)
        return mx.array(window)

    monkeypatch.setattr(mx, "asarray", share)
    monkeypatch.setattr(adopt, "tally", adopt.Tally())
    path = tiny_gguf(tmp_path / "tiny.gguf", codec="q8_0", hidden=128)
    names = ("token_embd.weight", "blk.1.ffn_down.weight")
    with open_gguf(path) as file:
        for name in names:
            np.testing.assert_array_equal(np.array(adopt.adopt(file.blocks(name))), file.blocks(name))
        sizes = [file.tensors[name].nbytes for name in names]
    data = path.read_bytes()
    for window in windows:
        start = data.index(window.tobytes())
        assert start % adopt.PAGE == 0
        assert window.nbytes % adopt.PAGE == 0 or start + window.nbytes == len(data)
    assert (adopt.tally.copied, adopt.tally.shared) == (0, sum(sizes))
    assert "none copied" in str(adopt.tally)


def test_blocks_between_words_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "asarray", lambda window, copy: mx.array(window))
    monkeypatch.setattr(adopt, "tally", adopt.Tally())
    blocks = np.frombuffer(mmap(-1, 100), np.uint8, 34, 2).reshape(1, 34)
    np.testing.assert_array_equal(np.array(adopt.adopt(blocks)), blocks)
    assert adopt.tally.reason == "blocks at byte 2 of the file; kernels read words of 4"


@pytest.mark.usefixtures("metal")
def test_a_file_whose_memory_is_in_use_is_held_and_watched(
    tmp_path: Path, on_metal: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "asarray", lambda window, copy: mx.array(window))
    path = tiny_gguf(tmp_path / "tiny.gguf", codec="q8_0", head_dim=64)
    loaded = load(path, context=64)
    assert loaded.file is not None
    backend = MLXBackend(loaded)
    sequence = backend.open()
    backend.step([Chunk(sequence, PROMPT, "last")])
    sequence.accept(len(PROMPT))
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(CorruptFile, match="changed while in use"):
        backend.step([Chunk(sequence, [1], "last")])
    backend.close()
    with pytest.raises(EngineClosed):
        loaded.file.check_unchanged()


def test_blocks_are_copied_where_mlx_cannot_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "tally", adopt.Tally())
    blocks = np.arange(68, dtype=np.uint8).reshape(2, 34)
    np.testing.assert_array_equal(np.array(adopt.adopt(blocks)), blocks)
    assert str(adopt.tally) == "0 bytes used where they lie in the file, 68 copied (not blocks of a mapped file)"
