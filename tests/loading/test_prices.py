"""Prices of formats: the user's own for the file they were measured on, else ours, by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeinfer.loading.planner import OURS
from edgeinfer.loading.prices import keep, prices

SMALL, LARGE = 100_000_000, 8_000_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def test_without_a_measurement_ours_are_given_with_the_model_they_are_of(tmp_path: Path, model: Path) -> None:
    found = prices(tmp_path, model, SMALL)
    assert found.keys() >= set(OURS)
    assert found["k8v4"].where == "measured on SmolLM2-135M"
    kl = [found[name].kl for name in OURS]
    assert kl == sorted(kl)
    assert kl[0] == 0


def test_what_was_measured_here_goes_first_and_grows_by_format(tmp_path: Path, model: Path) -> None:
    keep(tmp_path, model, {"k8v4": 0.5, "fp8": 0.25}, 2000)
    keep(tmp_path, model, {"k8v4": 0.125}, 4000)
    found = prices(tmp_path, model, LARGE)
    assert (found["k8v4"].kl, found["fp8"].kl) == (0.125, 0.25)
    assert found["k8v4"].where.startswith("measured here on 4,000 tokens, 20")
    assert found["k4v4"].where.startswith("measured on ")


def test_few_tokens_make_no_price(tmp_path: Path, model: Path) -> None:
    keep(tmp_path, model, {"k8v4": 0.5}, 63)
    assert prices(tmp_path, model, SMALL)["k8v4"].model


def test_another_file_and_a_changed_one_have_no_measurement(tmp_path: Path, model: Path) -> None:
    keep(tmp_path, model, {"k8v4": 0.5}, 2000)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"weights")
    assert prices(tmp_path, other, SMALL)["k8v4"].model
    os.utime(model, (1, 1))
    assert prices(tmp_path, model, SMALL)["k8v4"].model


@pytest.mark.parametrize("kept", ["", "[1]", '{"KEY": 3}', '{"KEY": {"k8v4": {"kl": NaN, "tokens": 1, "day": ""}}}'])
def test_a_file_that_is_not_ours_is_nothing(tmp_path: Path, model: Path, kept: str) -> None:
    keep(tmp_path, model, {"k8v4": 0.5}, 2000)
    file = tmp_path / "kv-prices.json"
    [key] = json.loads(file.read_text())
    file.write_text(kept.replace("KEY", key))
    assert prices(tmp_path, model, SMALL)["k8v4"].model
    keep(tmp_path, model, {"k8v4": 0.25}, 2000)
    assert prices(tmp_path, model, SMALL)["k8v4"].kl == 0.25


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path, model: Path) -> None:
    keep(model / "below a file", model, {"k8v4": 0.5}, 2000)
    assert prices(model / "below a file", model, SMALL)["k8v4"].model
