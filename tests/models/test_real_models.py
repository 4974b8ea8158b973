"""The two real models, teacher-forced over real text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.formats.gguf import open_gguf
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.llama import llama_logits
from tests.models.test_logits import mean_kl, our_logits
from tests.oracle import Oracle

TEXT = Path(__file__).parents[1] / "data" / "lighthouse.txt"


def tokens_of(path: Path, count: int) -> list[int]:
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path)
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_bos=tokenizer.add_bos)
    assert len(tokens) >= count
    return tokens[:count]


def check(path: Path, count: int) -> None:
    """llama.cpp stands at a KL of 0.003 (SmolLM2) and 0.005 (Gemma) from float32: it rounds activations to 8 bits.

    What that does to a logit is measured here; the greedy tokens differ only where the two best are that close.
    """
    tokens = tokens_of(path, count)
    ours = our_logits(path, tokens)
    llama = llama_logits(path, tokens)
    assert mean_kl(ours, llama) <= 0.006
    difference = ours - llama
    noise = (difference - difference.mean(axis=-1, keepdims=True)).std()
    best, other = ours.argmax(axis=-1), llama.argmax(axis=-1)
    rows = np.arange(count)
    assert (ours[rows, best] - ours[rows, other]).max() <= 4 * noise
    assert (best == other).mean() > 0.9
    del llama, difference
    numpy = Oracle(path).logits(tokens)
    assert mean_kl(ours, numpy) <= 1e-4
    assert (best == numpy.argmax(axis=-1)).all()


@pytest.mark.real_model
def test_smollm2(smollm2_path: Path) -> None:
    check(smollm2_path, 512)


@pytest.mark.real_model
def test_gemma3(gemma3_path: Path) -> None:
    """Half the text: a row of logits is a megabyte."""
    check(gemma3_path, 256)
