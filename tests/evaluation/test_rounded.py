"""Rounded keys and values, against a forward pass in numpy that rounds at the same place, and against llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import EXACT, FORMATS
from edgeinfer.evaluation.formats import compare_formats
from edgeinfer.evaluation.lockstep import Chunk, Side
from edgeinfer.evaluation.measures import divergences, perplexity
from edgeinfer.evaluation.model import EvaluatedModel
from edgeinfer.evaluation.rounded import RoundedModel
from edgeinfer.evaluation.scores import Perplexity, likelihood
from edgeinfer.evaluation.texts import windows
from tests.llama import llama_logits
from tests.tiny import tiny_gguf

TOKENS = np.random.default_rng(0).integers(4, 300, 96).tolist()


def logits_of(model: RoundedModel, name: str, pieces: int) -> NDArray[np.float32]:
    side, state, found = model.side(FORMATS[name]), model.backend.open(), []
    for start in range(0, len(TOKENS), pieces):
        with side.within():
            [logits] = model.backend.step([Chunk(state, TOKENS[start : start + pieces], "all")])
            found.append(np.array(logits))
        state.accept(len(TOKENS[start : start + pieces]))
    return np.concatenate(found)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_rounding_is_of_each_token_by_itself(architecture: str, tmp_path: Path) -> None:
    """However a text is cut into steps, a token sees the same rounded keys, its own among them.

    Sums in another order send a number across a border between two codes now and then; that moves little.
    """
    model = RoundedModel(tiny_gguf(tmp_path / "m.gguf", architecture, head_dim=32), EXACT)
    whole, pieces = logits_of(model, "k4v4", 96), logits_of(model, "k4v4", 7)
    loss = np.abs(whole - logits_of(model, "exact", 96))
    assert loss.mean() > 1e-3
    assert np.abs(whole - pieces).mean() < 0.03 * loss.mean()


def test_exact_is_float16_and_nothing_else_is_rounded(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", head_dim=32)
    rounded = logits_of(RoundedModel(path, EXACT), "exact", 96)
    np.testing.assert_allclose(rounded, llama_logits(path, TOKENS), atol=3e-2)
    wide = logits_of(RoundedModel(path, EXACT), "q8_0", 96)
    assert 0 < np.abs(rounded - wide).mean() < 0.1


def test_costs_grow_as_bits_go(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", head_dim=64, heads=2, kv_heads=1)
    names = ("exact", "k8v8", "k8v4", "k4v4", "k3v3")
    costs = compare_formats(path, [FORMATS[name] for name in names], [TOKENS])
    kl = [cost.divergence.mean for cost in costs]
    assert kl[0] == 0
    assert kl == sorted(kl)
    assert [cost.bytes_per_token for cost in costs] == [512, 264, 200, 136, 104]
    assert costs[2].bytes_ratio == pytest.approx(200 / 512)


def test_perplexity_is_that_of_llama_cpp_by_its_own_definition(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", head_dim=32)
    found = perplexity(Side("mlx", MLXBackend.load(path, 96)), [TOKENS])
    logits = llama_logits(path, TOKENS)[48:-1]
    assert found.ppl == pytest.approx(Perplexity.of(likelihood(logits, np.array(TOKENS[49:]))).ppl, rel=1e-3)


@pytest.mark.real_model
def test_perplexity_of_a_real_model_is_that_of_llama_cpp(smollm2_path: Path) -> None:
    model = EvaluatedModel.of(smollm2_path)
    [window] = windows(None, model.tokenizer, 512, most=1)
    found = perplexity(Side("mlx", model.load("mlx", 512)), [window])
    expected = Perplexity.of(likelihood(llama_logits(smollm2_path, window)[256:-1], np.array(window[257:])))
    assert found.tokens == expected.tokens == 255
    assert found.ppl == pytest.approx(expected.ppl, rel=0.02)


@pytest.mark.real_model
def test_our_formats_cost_what_they_promise_and_less_than_those_of_others(smollm2_path: Path) -> None:
    """Half a window of each text, quantized from the first token on; the whole of it is `edgeinfer eval kv`."""
    model = EvaluatedModel.of(smollm2_path)
    cut = [window[:160] for window in windows(None, model.tokenizer, 512)]
    limits = {"k8v8": 0.0004, "k8v4": 0.008, "k6v4": 0.013, "k4v4": 0.06}
    rounded = RoundedModel(smollm2_path, EXACT, 160)
    names = [*limits, "affine4-32", "turboquant4"]
    found = dict(
        zip(names, divergences(rounded.side(EXACT), [rounded.side(FORMATS[n]) for n in names], cut, 0), strict=True)
    )
    for name, limit in limits.items():
        assert found[name].mean <= limit, name
    assert found["k4v4"].mean < min(found["affine4-32"].mean, found["turboquant4"].mean)
