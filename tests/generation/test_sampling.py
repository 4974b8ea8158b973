"""One text for numpy and MLX: the same seed gives the same token, every filter leaves one, and draws are fair."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgeinfer.errors import EdgeInferError
from edgeinfer.generation import sampling
from edgeinfer.generation.sampler import Sampler
from edgeinfer.generation.sampling import Purpose, uniform
from edgeinfer.types import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    typical_p=st.sampled_from([0.0, 0.5, 1.0]),
    top_n_sigma=st.sampled_from([0.0, 0.1, 2.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.05, 0.5]),
)
ROWS = st.one_of(
    st.integers(0, 10_000).map(lambda seed: np.random.default_rng(seed).standard_normal(192).astype(np.float32) * 3),
    st.lists(st.sampled_from([-math.inf, -50.0, 0.0, 1.0, 1.0, 80.0]), min_size=1, max_size=80).map(
        lambda values: np.array(values, np.float32)
    ),
)


@settings(deadline=None)
@given(PARAMS, ROWS, st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_some_token_that_was_possible_is_left(params: SamplingParams, row: Any, seed: int, position: int) -> None:
    assume(np.isfinite(row.max()))
    token = int(sampling.choose(np, row, params, seed, position)[0])
    assert row[token] > -math.inf


@settings(deadline=None)
@given(PARAMS, st.integers(0, 10_000), st.integers(0, 2**64 - 1))
def test_numpy_and_mlx_choose_the_same_token(params: SamplingParams, row_seed: int, seed: int) -> None:
    row = np.random.default_rng(row_seed).standard_normal(8192).astype(np.float32) * 4
    with mx.stream(mx.cpu):
        on_device = int(sampling.choose(mx, mx.array(row), params, seed, 5).item())
    on_host = int(sampling.choose(np, row, params, seed, 5)[0])
    if on_device != on_host:  # only where u falls on a border, up to float32 rounding
        best, ids = sampling.candidates(np, row, params, seed, 5)
        mass = np.cumsum(sampling.softmax(np, best.astype(np.float64))[::-1])
        places = sorted(int(np.flatnonzero(ids[::-1] == token)[0]) for token in (on_device, on_host))
        assert abs(mass[places[1] - 1] - uniform(seed, 5)) < 1e-5


def test_draws_follow_the_probabilities() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    params = SamplingParams(top_k=0, top_p=1, min_p=0, temperature=1)
    draws = [int(sampling.choose(np, row, params, 123, position)[0]) for position in range(8000)]
    counts = np.bincount(draws, minlength=4)
    expected = 8000 * np.exp(row)
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # chi-squared, 3 degrees, p = 0.001


def test_random_numbers_are_uniform_and_of_streams_of_their_own() -> None:
    first = np.array([uniform(7, position) for position in range(20_000)])
    assert np.abs(np.bincount((first * 20).astype(int), minlength=20) - 1000).max() < 150
    for other in (
        [uniform(8, position) for position in range(20_000)],
        [uniform(7, position + 1) for position in range(20_000)],
        [uniform(7, position, Purpose.XTC) for position in range(20_000)],
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.03
    assert uniform(7, 3) == uniform(7, 3)


def test_greedy_takes_the_best_after_bias_and_penalties() -> None:
    row = np.array([1.0, 3.0, 2.0], np.float32)
    assert Sampler(SamplingParams(temperature=0), 3).on_host(row, [0]).id == 1
    assert Sampler(SamplingParams(temperature=0, logit_bias={1: -2.5}), 3).on_host(row, [0]).id == 2
    assert Sampler(SamplingParams(temperature=0, repetition_penalty=2), 3).on_host(row, [1]).id == 2
    assert Sampler(SamplingParams(temperature=0, logit_bias={0: math.inf}), 3).on_host(row, [0]).id == 0


def test_a_row_is_never_changed() -> None:
    row = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    before = row.copy()
    params = SamplingParams(
        repetition_penalty=1.5, dry_multiplier=1, logit_bias={1: 3}, mirostat=True, logprobs=3, top_n_sigma=1
    )
    Sampler(params, 64).on_host(row, [1, 2, 3, 1, 2, 3, 1, 2])
    assert (row == before).all()


def test_logprobs_come_from_before_any_filter() -> None:
    row = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    choice = Sampler(SamplingParams(logprobs=5, top_k=1, temperature=3, logit_bias={9: 50}), 64).on_host(row, [0])
    assert choice.id == 9
    assert choice.logprob == pytest.approx(exact[9])
    assert [token for token, _ in choice.top] == np.argsort(-exact)[:5].tolist()
    assert [value for _, value in choice.top] == pytest.approx(sorted(exact, reverse=True)[:5])
    assert Sampler(SamplingParams(logprobs=0), 64).on_host(row, [0]).top == ()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    row = np.zeros(128, np.float32)
    row[70] = value
    with pytest.raises(EdgeInferError, match="token 3 are not finite"):
        Sampler(SamplingParams(), 128).on_host(row, [1, 2, 3])
    for params in (SamplingParams(), SamplingParams(temperature=0)):
        assert int(Sampler(params, 128).on_device(mx, mx.array(row), 3).item()) == -1


def test_a_bias_against_everything_is_an_error() -> None:
    bias = dict.fromkeys(range(4), -math.inf)
    with pytest.raises(EdgeInferError, match="logit_bias rules every one out"):
        Sampler(SamplingParams(logit_bias=bias), 4).on_host(np.zeros(4, np.float32), [1])


def test_mirostat_holds_the_surprise() -> None:
    rng = np.random.default_rng(5)
    sampler = Sampler(SamplingParams(mirostat=True, mirostat_tau=3.0, temperature=1, seed=4), 512)
    limits, history = [sampler._mirostat_limit], [0]
    for _ in range(1500):
        history.append(sampler.on_host((rng.standard_normal(512) * 2).astype(np.float32), history).id)
        limits.append(sampler._mirostat_limit)
    surprises = 3.0 - np.diff(limits) / 0.1
    assert surprises.min() >= 0
    assert surprises[300:].mean() == pytest.approx(3.0, abs=0.1)


def test_a_new_seed_each_time_unless_one_is_given() -> None:
    assert Sampler(SamplingParams(), 4).seed != Sampler(SamplingParams(), 4).seed
    assert Sampler(SamplingParams(seed=3), 4).seed == 3
