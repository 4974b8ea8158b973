"""Choosing at random natively: the tokens that generation/sampling.py chooses in numpy."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.generation import sampling
from edgeinfer.generation.sampler import Sampler
from edgeinfer.types import SamplingParams

OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 5000, "top_p": 1.0, "min_p": 0.0},
    {"typical_p": 0.5},
    {"typical_p": 0.0, "top_p": 0.3},
    {"top_p": 0.0},
    {"min_p": 0.3, "temperature": 2.5},
    {"min_p": 1.0},
    {"xtc_probability": 0.6, "xtc_threshold": 0.05, "temperature": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_token_of_every_filter(native: Any, options: dict[str, Any]) -> None:
    """Position by position."""
    random = np.random.default_rng(11)
    params = SamplingParams(seed=12345, **options)
    sampler = Sampler(params, 2000)
    for position in range(60):
        logits = (2 * random.standard_normal(2000)).astype(np.float32)
        logits[random.integers(2000, size=3)] = 8 + random.standard_normal(3).astype(np.float32)
        logits[7] = -np.inf
        found = sampler.on_device(mx, mx.array(logits), position).item()
        assert found == sampling.choose(np, logits, params, 12345, position).item()


def test_equals_come_in_the_order_of_their_ids(native: Any) -> None:
    logits = mx.array([1.0, 3, 2, 3, 2, 2, 0] + [0.0] * 200)
    chosen = [native.sample(logits, u, 3, 1.0).item() for u in (0.0, 0.3, 0.9)]
    assert chosen == [2, 3, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_choose_nothing(native: Any, bad: float) -> None:
    logits = np.zeros(100, np.float32)
    logits[70] = bad
    assert native.sample(mx.array(logits), 0.5, 40, 1.0).tolist() == [-1]
    assert native.sample(mx.full((100,), -mx.inf), 0.5, 40, 1.0).tolist() == [-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((mx.zeros((2, 3)), 0.5, 1, 1.0), "logits: expected"), ((mx.zeros((3,)), 1.0, 1, 1.0), "expected top_k"),
     ((mx.zeros((3,)), 0.5, 0, 1.0), "expected top_k"), ((mx.zeros((3,)), 0.5, 1, 0.0), "expected top_k")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(native: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.sample(*arguments)
