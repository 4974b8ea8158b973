"""Tests of the native path: they need it built, and say so where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.native import obstacle, primitives


@pytest.fixture
def native() -> Any:
    if primitives is None:
        pytest.skip(obstacle)
    return primitives


@pytest.fixture(params=primitives.instruction_sets() if primitives else [""])
def each_isa(native: Any, request: pytest.FixtureRequest) -> Any:
    """Every instruction set that this machine has, one after the other."""
    before = native.instruction_set()
    native.use_instruction_set(request.param)
    yield request.param
    native.use_instruction_set(before)
