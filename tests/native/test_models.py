"""Whole models on the native path: near the published formulas, and the same bits in any company."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from tests.llama import llama_logits
from tests.models.test_logits import ARCHITECTURES, CODECS, VARIANTS, mean_kl, our_logits, some_tokens
from tests.models.test_real_models import tokens_of
from tests.oracle import Oracle
from tests.tiny import tiny_gguf

TOKENS = some_tokens(90, seed=3)


@pytest.fixture(autouse=True)
def takes_it(native: Any) -> None:
    assert ops.fused


@pytest.mark.parametrize(("architecture", "options"), VARIANTS.values(), ids=VARIANTS.keys())
def test_float_models_agree_with_numpy(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    """Logits have a spread of 1.5; keys and values are rounded to float16."""
    path = tiny_gguf(tmp_path / "m.gguf", architecture, **options)
    tokens = some_tokens(200)
    found, expected = our_logits(path, tokens), Oracle(path).logits(tokens)
    assert np.abs(found - expected).max() < 0.03
    assert mean_kl(found, expected) < 1e-5


@pytest.mark.parametrize("codec", CODECS)
def test_quantized_models_are_as_near_as_llama_cpp(tmp_path: Path, codec: str) -> None:
    """Both round activations to 8 bits; the KL of such models is some thousandths, so a tenth more is noise."""
    architecture = ARCHITECTURES[CODECS.index(codec) % len(ARCHITECTURES)]
    path = tiny_gguf(tmp_path / "m.gguf", architecture, codec=codec, hidden=256, head_dim=64, feed_forward=256)
    tokens = some_tokens(64)
    expected = Oracle(path).logits(tokens)
    assert mean_kl(our_logits(path, tokens), expected) < 1.1 * mean_kl(llama_logits(path, tokens), expected) + 1e-5


@pytest.mark.parametrize("threads", [0, 1, 3, 1000])
def test_no_number_of_threads_matters(native: Any, tmp_path: Path, threads: int) -> None:
    """0 takes the physical cores; no more than there are processors are ever started."""
    path = tiny_gguf(tmp_path / "m.gguf", codec="q8_0", hidden=256, head_dim=64, feed_forward=256)
    expected = steps(MLXBackend.load(path, threads=2), [40], TOKENS)
    assert np.array_equal(steps(MLXBackend.load(path, threads=threads), [40], TOKENS), expected)
    assert 1 <= native.threads() <= (os.cpu_count() or 1)


def test_heads_without_kernels_are_composed(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", head_dim=24)
    assert np.abs(our_logits(path, TOKENS) - Oracle(path).logits(TOKENS)).max() < 1e-4


def steps(backend: MLXBackend, sizes: list[int], tokens: list[int]) -> NDArray[np.float32]:
    sequence, rows, start = backend.open(), [], 0
    for size in sizes:
        (logits,) = backend.step([Chunk(sequence, tokens[start : start + size], "all")])
        sequence.accept(size)
        rows.append(np.array(logits))
        start += size
    return np.concatenate(rows)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_the_same_bits_in_any_company(tmp_path: Path, architecture: str) -> None:
    """In whichever steps, beside whichever sequences, with however many threads; past a window, past 256 positions."""
    codec = {"attn": "q4_k", "ffn_down": "q8_0", "ffn": "q5_0", "token": "q6_k"}
    sizes: dict[str, Any] = {"hidden": 256, "head_dim": 64, "feed_forward": 256, "layers": 2}
    path = tiny_gguf(tmp_path / "m.gguf", architecture, codec=codec, **sizes)
    tokens, other = some_tokens(300), some_tokens(40, seed=9)
    whole = steps(MLXBackend.load(path, threads=2), [300], tokens)
    for threads, cuts in ((1, [299, 1]), (2, [7, 16, 1, 2, 3, 5, 64, 100, 100, 1, 1]), (3, [150, 33, 17, 99, 1])):
        assert np.array_equal(steps(MLXBackend.load(path, threads=threads), cuts, tokens), whole)
    backend = MLXBackend.load(path, threads=2)
    first, second, third = backend.open(), backend.open(), backend.open()
    for start in range(0, 300, 60):
        chunks = [Chunk(second, other[:7], "all"), Chunk(first, tokens[start : start + 60], "all"), Chunk(third, [3])]
        found = np.array(backend.step(chunks)[1])
        for sequence, count in ((second, 7), (first, 60), (third, 1)):
            sequence.accept(count)
        assert np.array_equal(found, whole[start : start + 60])


def test_forks_and_shorter_prefixes_keep_their_own_cache(tmp_path: Path) -> None:
    backend = MLXBackend.load(tiny_gguf(tmp_path / "m.gguf", context=1024))
    tokens = some_tokens(600)
    whole = steps(backend, [600], tokens)
    origin = backend.open()
    backend.step([Chunk(origin, tokens[:550], "none")])
    origin.accept(550)
    short = backend.open([*tokens[:200], 5, 6])
    fork = origin.fork()
    assert short.length == 200
    for sequence in (short, fork, origin):
        start = sequence.length
        (logits,) = backend.step([Chunk(sequence, tokens[start:], "all")])
        assert np.array_equal(np.array(logits), whole[start:])
        sequence.accept(0)


@pytest.mark.parametrize("threads", [0, 10_000])
def test_threads_are_the_cores_by_default_and_at_most_the_processors(tmp_path: Path, native: Any, threads: int) -> None:
    backend = MLXBackend.load(tiny_gguf(tmp_path / "m.gguf"), threads=threads)
    assert steps(backend, [5], TOKENS).shape == (5, 320)
    assert 1 <= native.threads() <= 1024


def nearer_than_llama_cpp(path: Path, count: int) -> None:
    tokens = tokens_of(path)[:count]
    expected = Oracle(path).logits(tokens)
    found, theirs = our_logits(path, tokens), llama_logits(path, tokens)
    assert mean_kl(found, expected) <= mean_kl(theirs, expected)
    assert (found.argmax(axis=-1) == expected.argmax(axis=-1)).mean() > 0.94


@pytest.mark.real_model
def test_smollm2_is_no_farther_from_float32_than_llama_cpp(smollm2_path: Path) -> None:
    nearer_than_llama_cpp(smollm2_path, 512)


@pytest.mark.real_model
def test_gemma3_is_no_farther_from_float32_than_llama_cpp(gemma3_path: Path) -> None:
    nearer_than_llama_cpp(gemma3_path, 256)
