"""Slices of prompts: as long as steps stay short, and never where cutting could change a token."""

from __future__ import annotations

import pytest

from edgeinfer.generation.slices import LEAST, SECONDS, Slices


@pytest.mark.parametrize("rate", [10, 80, 300, 1500, 1e6])
@pytest.mark.parametrize("parameters", [10**8, 7 * 10**9])
def test_a_step_becomes_short_and_no_shorter_than_it_must(rate: float, parameters: int) -> None:
    slices = Slices(512, True, parameters)
    for _ in range(12):
        slices.observe(slices.size, slices.size / rate)
    assert slices.size <= max(LEAST, rate * SECONDS)
    assert slices.size >= min(512, LEAST if rate * SECONDS < LEAST else rate * SECONDS / 2)
    assert slices.size & (slices.size - 1) == 0


def test_the_first_slice_of_a_large_model_is_small() -> None:
    assert Slices(512, True, 7 * 10**9).size == LEAST
    assert Slices(512, True, 135 * 10**6).size >= 128


def test_where_cutting_matters_the_size_stays() -> None:
    slices = Slices(512, False, 7 * 10**9)
    slices.observe(512, 60)
    assert slices.size == 512
