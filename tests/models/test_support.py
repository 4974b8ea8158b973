"""What models/README.md says is true: cells drawn at random are tried again."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgeinfer.loading.registry import architectures
from tests.support import SLOW, cell, cells, families, written

SEED = int(os.environ.get("EDGEINFER_TEST_SEED", "0")) or int(np.random.default_rng().integers(1, 1 << 31))
TRIED = [pair for pair in cells() if pair[1] not in SLOW]
DRAWN = [TRIED[i] for i in np.random.default_rng(SEED).choice(len(TRIED), 10, replace=False)]


@pytest.mark.parametrize(("family", "codec"), DRAWN, ids=lambda each: f"{each}-seed{SEED}")
def test_a_cell_is_as_it_is_written(family: str, codec: str) -> None:
    assert cell(family, codec)[0] == written()[family, codec]


def test_the_table_has_every_family_and_no_format_that_neither_engine_runs() -> None:
    rows = {family for family, _ in written()}
    assert rows == set(families())
    assert {row.split()[0] for row in rows} == set(architectures())
    assert "none" not in written().values()
