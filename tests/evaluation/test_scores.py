"""Perplexity and divergence, against their definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.evaluation.scores import Comparison, Perplexity, likelihood, log_softmax


def exact(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)


@pytest.mark.parametrize("scale", [1, 20, 3000])
def test_log_softmax_and_likelihood(scale: float) -> None:
    logits = (scale * np.random.default_rng(0).standard_normal((7, 5000))).astype(np.float32)
    np.testing.assert_allclose(log_softmax(logits), exact(logits), rtol=1e-6, atol=2e-6 * scale)
    targets = np.arange(7) * 700
    np.testing.assert_allclose(likelihood(logits, targets), -exact(logits)[np.arange(7), targets], rtol=1e-6)


def test_perplexity_of_known_chances() -> None:
    found = Perplexity.of(-np.log(np.array([0.5, 0.25, 0.125])))
    assert found.ppl == pytest.approx(4)
    assert found.error == pytest.approx(4 * np.log(2) / np.sqrt(3))
    assert found.tokens == 3


def test_divergence_is_its_definition_whatever_the_pieces() -> None:
    random = np.random.default_rng(1)
    first = (3 * random.standard_normal((60, 900))).astype(np.float32)
    second = (first + 0.05 * random.standard_normal((60, 900))).astype(np.float32)
    targets = random.integers(0, 900, 60)
    comparison = Comparison()
    for rows in (slice(0, 1), slice(1, 40), slice(40, 60)):
        comparison.add(log_softmax(first[rows]), log_softmax(second[rows]), targets[rows])
    found = comparison.result()
    p, q = exact(first), exact(second)
    kl = (np.exp(p) * (p - q)).sum(1)
    assert found.mean == pytest.approx(kl.mean(), rel=1e-4)
    assert found.median == pytest.approx(np.median(kl), rel=1e-4)
    assert found.p999 == pytest.approx(np.quantile(kl, 0.999), rel=1e-4)
    assert found.top == np.mean(p.argmax(1) == q.argmax(1))
    assert found.flips == pytest.approx(1 - found.top)
    assert found.ppl_ratio == pytest.approx(np.exp((p - q)[np.arange(60), targets].mean()), rel=1e-5)
    assert found.tokens == 60


def test_small_divergences_survive_float32() -> None:
    """A thousandth of what a 4-bit cache does, over a vocabulary as large as they come."""
    random = np.random.default_rng(2)
    first = (4 * random.standard_normal((4, 262_144))).astype(np.float32)
    second = first + (1e-2 * random.standard_normal(first.shape)).astype(np.float32)
    comparison = Comparison()
    comparison.add(log_softmax(first), log_softmax(second), np.zeros(4, np.int64))
    p, q = exact(first), exact(second)
    assert comparison.result().mean == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=5e-3)
