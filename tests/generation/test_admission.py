"""Who is let in: as many as memory holds at their longest, and one at a time where that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.generation.request import Request
from edgeinfer.types import SamplingParams
from tests.generation.test_scheduler import GREEDY, PROMPT, serve, tape


def test_alone_means_one_at_a_time_and_from_the_first_token() -> None:
    backend = tape("Hello")
    outlets = serve(backend, *[Request(PROMPT, GREEDY)] * 3, alone=True)
    assert [outlet.text for outlet in outlets] == ["Hello"] * 3
    assert set(backend.sizes) == {1}
    assert [outlet.finished.usage.cached for outlet in outlets] == [0, 0, 0]


@pytest.mark.parametrize(("budget", "together"), [(0, 4), (10_000, 4), (500, 2), (1, 1)])
def test_as_many_are_open_as_memory_holds_at_their_longest(budget: int, together: int) -> None:
    backend = tape("Hello world")
    backend.info = replace(backend.info, kv_budget=budget)
    params = SamplingParams(temperature=0, max_tokens=40)
    outlets = serve(backend, *[Request([*PROMPT, place + 3], params) for place in range(4)])
    assert all(outlet.text == "Hello world" for outlet in outlets)
    assert max(backend.sizes) == together
