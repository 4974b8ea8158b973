"""What models/README.md says is true: cells drawn at random are tried again."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgeinfer.loading.registry import architectures
from tests.support import FIRST_PAGE, PAGE, SLOW, SUMMARY, cell, cells, families, folders, summary, written

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


def test_both_pages_say_what_the_command_writes() -> None:
    assert folders() in PAGE.read_text(encoding="utf-8")
    (found,) = SUMMARY.findall(FIRST_PAGE.read_text(encoding="utf-8"))
    assert found == f"[{summary()}](models/README.md)"
