"""Work that is shared gives what one thread gives."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edgeinfer.ops.workers import WORTH, Workers, current, threads


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(1, 5, 1), (3, 1024, 512), (1031, 513, 1), (1031, 513, 3), (2048, 64, 33)])
def test_products(count: int, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    random = np.random.default_rng(5)
    weight = random.standard_normal((rows, inner)).astype(np.float32)
    x = random.standard_normal((columns, inner)).astype(np.float32)
    found = Workers(count).product(weight, x.T)
    assert np.allclose(found, weight.astype(np.float64) @ x.T, atol=1e-3)


def test_small_products_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(2)
    monkeypatch.setattr(workers, "each", lambda work, items: pytest.fail("woke a thread"))
    weight = np.ones((WORTH // 64 - 1, 64), np.float32)
    assert (workers.product(weight, np.ones((64, 1), np.float32)) == 64).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_item_is_worked_on_once(count: int) -> None:
    done: list[int] = []
    workers = Workers(count)
    for size in (0, 1, 2, 50):
        done.clear()
        workers.each(done.append, range(size))
        assert sorted(done) == list(range(size))


def test_the_calling_thread_works_too_and_does_what_others_have_not_begun() -> None:
    """The helper is held up in its first item, so that all the others fall to the caller."""
    release, names = threading.Event(), {}

    def work(item: int) -> None:
        names[item] = threading.current_thread().name
        if item == 1:
            release.wait(10)
        if item == 2:
            release.set()

    Workers(2).each(work, range(6))
    assert set(names) == set(range(6))
    assert names[0] == names[5] == threading.current_thread().name != names[1]


@pytest.mark.parametrize("item", [0, 1, 5])
def test_errors_reach_the_caller(item: int) -> None:
    def work(index: int) -> None:
        if index == item:
            raise ArithmeticError(index)

    with pytest.raises(ArithmeticError, match=str(item)):
        Workers(2).each(work, range(6))


def test_blocks_nest_and_end() -> None:
    assert current().count == 1
    with threads(3):
        with threads(2):
            assert current().count == 2
        assert current().count == 3
    assert current().count == 1
