"""The two real models: teacher-forced over real text, and continuing a prompt on their own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer import ops
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.llm import load
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.llama import llama_logits
from tests.models.test_logits import mean_kl, our_logits
from tests.oracle import Oracle

TEXT = Path(__file__).parents[1] / "data" / "lighthouse.txt"
TOKENS = 512


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single operations, which round nothing; tests/native holds the native path to the same models."""
    monkeypatch.setattr(ops, "fused", False)


def tokens_of(path: Path) -> list[int]:
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path)
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_bos=tokenizer.add_bos)
    assert len(tokens) >= TOKENS
    return tokens[:TOKENS]


def rounding_noise(llama: NDArray[np.float32], numpy: NDArray[np.float32]) -> float:
    """What llama.cpp's rounding of activations to 8 bits does to the difference of two logits: three deviations.

    Measured between two engines that others wrote; ours has no part in it.
    """
    variances = [np.var(row - reference, dtype=np.float64) for row, reference in zip(llama, numpy, strict=True)]
    return 3 * math.sqrt(2 * float(np.mean(variances)))


def check_greedy(ours: NDArray[np.integer], llama: NDArray[np.float32], noise: float) -> None:
    """Each token is llama.cpp's, but where its best logit and that of our token lie closer than the noise."""
    gaps = llama.max(axis=-1) - llama[np.arange(len(ours)), ours]
    assert gaps.max() <= noise
    assert (gaps == 0).mean() > 0.9


def check(path: Path) -> None:
    """llama.cpp stands at a KL of 0.003 (SmolLM2) and 0.005 (Gemma) from float32."""
    tokens = tokens_of(path)
    ours, llama, numpy = our_logits(path, tokens), llama_logits(path, tokens), Oracle(path).logits(tokens)
    assert mean_kl(ours, numpy) <= 1e-4
    assert (ours.argmax(axis=-1) == numpy.argmax(axis=-1)).all()
    assert mean_kl(ours, llama) <= 0.006
    noise = rounding_noise(llama, numpy)
    assert noise < 0.75  # the two best logits of a row are 1.1 apart on average
    check_greedy(ours.argmax(axis=-1), llama, noise)
    del ours, llama, numpy
    with load(str(path), backend="mlx", context=TOKENS) as llm:
        made = list(llm.generate(tokens[:40], temperature=0, max_tokens=64, ignore_eos=True).ids)
    check_greedy(np.array(made), llama_logits(path, [*tokens[:40], *made])[39:-1], noise)


@pytest.mark.real_model
def test_smollm2(smollm2_path: Path) -> None:
    check(smollm2_path)


@pytest.mark.real_model
def test_gemma3(gemma3_path: Path) -> None:
    check(gemma3_path)
