"""Each sampler leaves the tokens and the probabilities that llama.cpp's sampler of the same name leaves.

One difference is meant: where top-n-sigma leaves fewer tokens than top-k, llama.cpp's typical sampler works out an
entropy that is not a number from the dropped ones, and keeps a meaningless set. Ours leaves dropped tokens out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from edgeinfer.generation import sampling
from edgeinfer.generation.penalties import bias_row, dry, find_breakers, penalize
from edgeinfer.types import SamplingParams

VOCAB = 512
SEEDS = range(12)


def row(seed: int, scale: float = 3.0, size: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def theirs(sampler: Any, logits: np.ndarray, history: Sequence[int] = (), ids: Any = None) -> dict[int, float]:
    """Probabilities by token after a llama.cpp sampler, which is freed. ``ids``: the candidates, if not all."""
    for token in history:
        llama_cpp.llama_sampler_accept(sampler, token)
    table = np.zeros(len(logits), [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    table["id"], table["logit"] = np.arange(len(logits)) if ids is None else ids, logits
    data = table.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(data, len(logits), -1, False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    first = (ctypes.addressof(array.data.contents) - table.ctypes.data) // table.itemsize
    left = table[first : first + array.size]
    llama_cpp.llama_sampler_free(sampler)
    return probabilities(left["logit"], left["id"])


def probabilities(logits: np.ndarray, ids: np.ndarray) -> dict[int, float]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    weights /= weights.sum()
    return {int(token): float(weight) for token, weight in zip(ids, weights, strict=True) if weight > 0}


def same(mine: dict[int, float], other: dict[int, float]) -> None:
    assert mine.keys() == other.keys()
    assert list(mine.values()) == pytest.approx([other[token] for token in mine], rel=2e-5, abs=1e-9)


def sorted_row(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return sampling.top_k(np, logits, 0)


Filter = Callable[..., np.ndarray]
FILTERS: list[tuple[Filter, Callable[[float], Any], tuple[float, ...]]] = [
    (sampling.top_p, lambda p: llama_cpp.llama_sampler_init_top_p(p, 1), (0.0, 0.1, 0.5, 0.9, 0.95, 0.999)),
    (sampling.min_p, lambda p: llama_cpp.llama_sampler_init_min_p(p, 1), (0.001, 0.05, 0.3, 1.0)),
    (sampling.typical_p, lambda p: llama_cpp.llama_sampler_init_typical(p, 1), (0.0, 0.2, 0.7, 0.95)),
    (sampling.top_n_sigma, lambda n: llama_cpp.llama_sampler_init_top_n_sigma(n), (0.3, 1.0, 2.0, 5.0)),
    (sampling.xtc, lambda t: llama_cpp.llama_sampler_init_xtc(1.0, t, 1, 7), (0.01, 0.05, 0.1, 0.3, 0.5)),
]


@pytest.mark.parametrize(("mine", "other", "values"), FILTERS, ids=[entry[0].__name__ for entry in FILTERS])
@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
def test_a_filter_keeps_the_same_tokens(
    mine: Filter, other: Callable[[float], Any], values: tuple[float, ...], scale: float
) -> None:
    for seed in SEEDS:
        logits = row(seed, scale)
        best, ids = sorted_row(logits)
        exact = np.cumsum(np.exp(best.astype(np.float64)) / np.exp(best.astype(np.float64)).sum())
        for value in values:
            if np.abs(exact - value).min() < 1e-6:
                continue  # a border that float32 cannot tell the side of
            same(probabilities(mine(np, best, value), ids), theirs(other(value), logits))


@pytest.mark.parametrize("k", [1, 2, 40, 511, 512, 10_000])
@pytest.mark.parametrize("size", [512, 500, 8192])
def test_top_k_keeps_the_same_tokens(k: int, size: int) -> None:
    for seed in SEEDS:
        logits = row(seed, size=size)
        best, ids = sampling.top_k(np, logits, k)
        assert (np.diff(best) <= 0).all()
        same(probabilities(best, ids), theirs(llama_cpp.llama_sampler_init_top_k(k), logits))


CHAINS = [
    SamplingParams(),
    SamplingParams(top_k=0, temperature=1.3),
    SamplingParams(top_k=100, typical_p=0.8, top_p=0.9, min_p=0.01, temperature=0.4),
    SamplingParams(top_n_sigma=1.5, top_k=0, top_p=1, min_p=0, temperature=2.0),
    SamplingParams(top_n_sigma=2.0, xtc_probability=1, xtc_threshold=0.05, min_p=0.02),
    SamplingParams(top_k=5, top_p=0.5, min_p=0.3, xtc_probability=1, xtc_threshold=0.1),
]


@pytest.mark.parametrize("params", CHAINS)
def test_the_whole_chain_agrees(params: SamplingParams) -> None:
    for seed in SEEDS:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for link in (
            llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma),
            llama_cpp.llama_sampler_init_top_k(params.top_k),
            llama_cpp.llama_sampler_init_typical(params.typical_p, 1),
            llama_cpp.llama_sampler_init_top_p(params.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(params.min_p, 1),
            llama_cpp.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 1, 7),
            llama_cpp.llama_sampler_init_temp(params.temperature),
        ):
            llama_cpp.llama_sampler_chain_add(chain, link)
        logits = row(seed)
        same(probabilities(*sampling.candidates(np, logits, params, seed, 0)), theirs(chain, logits))


PENALTIES = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.8, penalty_window=5),
    SamplingParams(presence_penalty=1.5, frequency_penalty=0.2),
    SamplingParams(frequency_penalty=-0.7, penalty_window=20),
    SamplingParams(repetition_penalty=1.1, presence_penalty=-0.5, frequency_penalty=0.4),
]


@pytest.mark.parametrize("params", PENALTIES)
def test_penalties_agree(params: SamplingParams) -> None:
    for seed in SEEDS:
        history = np.random.default_rng(seed).integers(0, 40, 100)
        logits = row(seed)
        mine = logits.copy()
        penalize(mine, history, params)
        other = llama_cpp.llama_sampler_init_penalties(
            VOCAB,
            params.penalty_window,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        same(probabilities(mine, np.arange(VOCAB)), theirs(other, logits, history.tolist()))


def test_a_bias_is_added() -> None:
    bias = {3: 5.0, 17: -2.5, 40: -float("inf")}
    entries = (llama_cpp.llama_logit_bias * len(bias))(*(llama_cpp.llama_logit_bias(*item) for item in bias.items()))
    logits = row(1)
    other = llama_cpp.llama_sampler_init_logit_bias(VOCAB, len(bias), entries)
    same(probabilities(logits + bias_row(bias, VOCAB), np.arange(VOCAB)), theirs(other, logits))
    assert np.isfinite(bias_row({1: float("inf")}, VOCAB)).all()


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_temperature_agrees(temperature: float) -> None:
    params = SamplingParams(top_k=0, top_p=1, min_p=0, temperature=temperature)
    logits = row(2)
    other = theirs(llama_cpp.llama_sampler_init_temp(temperature), logits)
    same(probabilities(*sampling.candidates(np, logits, params, 1, 0)), other)


def test_mirostat_keeps_the_same_tokens() -> None:
    """Their first step cuts at 2 tau: ours must draw the tokens that theirs keeps, and in proportion."""
    params = SamplingParams(mirostat=True, mirostat_tau=1.2, temperature=1.0)
    logits = row(3)
    kept = theirs(llama_cpp.llama_sampler_init_mirostat_v2(1, params.mirostat_tau, params.mirostat_eta), logits)
    drawn = [sampling.mirostat(np, logits, params, 1, place, 2 * params.mirostat_tau) for place in range(4000)]
    ids, counts = np.unique([int(token) for token, _ in drawn], return_counts=True)
    assert set(ids.tolist()) <= kept.keys()
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        assert count / 4000 == pytest.approx(kept[token], abs=0.03)
    for token, surprise in drawn[:50]:
        assert 2.0 ** -float(surprise) == pytest.approx(kept[int(token)], rel=1e-4)


@pytest.fixture(scope="module")
def vocabulary(smollm2_path: Path) -> Any:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(smollm2_path).encode(), params)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


class LlamaVocabulary:
    """llama.cpp's own tokens, in the names that find_breakers reads."""

    def __init__(self, vocab: Any) -> None:
        self.vocab = vocab
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)

    def token_bytes(self, token: int, /) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        size = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 512, 0, True)
        return buffer.raw[:size]

    def encode(self, text: str, /) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), False, False)
        return list(tokens[:count])


DRY = [
    SamplingParams(dry_multiplier=0.8),
    SamplingParams(dry_multiplier=0.8, dry_allowed_length=1, dry_base=1.2),
    SamplingParams(dry_multiplier=2.0, dry_allowed_length=3, dry_window=40),
    SamplingParams(dry_multiplier=0.5, dry_base=1.0, dry_breakers=("\n", " the", "ab")),
    SamplingParams(dry_multiplier=0.1, dry_base=3.0, dry_breakers=()),
]


@pytest.mark.real_model
@pytest.mark.parametrize("params", DRY)
def test_dry_agrees(params: SamplingParams, vocabulary: Any) -> None:
    names = LlamaVocabulary(vocabulary)
    breakers = find_breakers(names, params.dry_breakers)
    texts = (ctypes.c_char_p * max(1, len(params.dry_breakers)))(*(text.encode() for text in params.dry_breakers))
    words = np.unique(names.encode("one two three the four: a b\n five"))
    penalized = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alphabet = rng.choice(words, size=int(rng.integers(1, 7)), replace=False)
        history = rng.choice(alphabet, size=int(rng.integers(1, 120)))
        if seed % 3 == 0:
            history = np.concatenate([history, history[: int(rng.integers(1, len(history) + 1))]])
        logits = row(seed, size=names.vocab_size)
        mine = logits.copy()
        dry(mine, history, params, breakers)
        other = llama_cpp.llama_sampler_init_dry(
            vocabulary,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_window or 10_000,
            texts,
            len(params.dry_breakers),
        )
        same(probabilities(mine[words], words), theirs(other, logits[words], history.tolist(), words))
        assert np.isin(np.flatnonzero(mine != logits), words).all()
        penalized += bool((mine != logits).any())
    assert penalized >= 5
