"""A running cache loses nothing while a text is short, and less than rounding everything when it is long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import FORMATS
from edgeinfer.evaluation.formats import compare_formats
from edgeinfer.evaluation.running import allocated, running_costs
from edgeinfer.ops.paged import SINKS, TAIL
from tests.tiny import tiny_gguf

TOKENS = np.random.default_rng(0).integers(4, 300, 1024).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf", heads=2, kv_heads=1, head_dim=64, context=2048)


def test_nothing_is_lost_before_the_first_page_is_sealed(path: Path) -> None:
    [short] = running_costs(path, ["k3v3"], [TOKENS[: SINKS + TAIL]], 0)
    assert short.mean < 1e-6  # sums in another order
    assert short.top == 1
    [long] = running_costs(path, ["k3v3"], [TOKENS], 512)
    assert long.mean > 1e-4


def test_regions_lose_less_than_rounding_everything(path: Path) -> None:
    forms = [FORMATS["k8v4"], FORMATS["k3v3"]]
    running = compare_formats(path, forms, [TOKENS], regions=True)
    rounded = compare_formats(path, forms, [TOKENS])
    for one, other in zip(running, rounded, strict=True):
        assert 0 < one.divergence.mean < other.divergence.mean
    assert running[0].divergence.mean < running[1].divergence.mean
    assert [cost.bytes_per_token for cost in running] == [cost.bytes_per_token for cost in rounded] == [200, 104]


def test_bytes_are_those_that_are_allocated(path: Path) -> None:
    backend = MLXBackend.load(path, 2048, kv="k4v4")
    few, many = allocated(backend, 1024), allocated(backend, 2048)
    assert many - few == 1024 * 2 * FORMATS["k4v4"].row_bytes(64)
    assert few > 1024 * 2 * FORMATS["k4v4"].row_bytes(64)  # what is kept exact is counted too
