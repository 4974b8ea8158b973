"""Threads that share numpy's work.

OpenBLAS's own threads spin for each other: on a machine with anything else to do, two of them are 3 to 10 times slower
than one. So BLAS is held to one thread, and large products are cut in pieces here, where waiting is sleeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

T = TypeVar("T")

WORTH = 1 << 19
"""Multiplications from which a product is cut: some 50 µs, twice what it costs to wake a thread."""


class Workers:
    """``count`` threads, the calling one among them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "edgeinfer-ops", _quiet) if count > 1 else None

    def each(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        """Calls ``work`` for every item; what is left over to this thread it does itself."""
        if self._pool is None or len(items) < 2:
            for item in items:
                work(item)
            return
        waiting = [(self._pool.submit(work, item), item) for item in items[1:]]
        work(items[0])
        for future, item in reversed(waiting):
            if future.cancel():
                work(item)
            else:
                future.result()

    def product(self, weight: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """weight @ x, by rows of the weight. (N, K), (K, M) -> (N, M)."""
        if self._pool is None or weight.size * x.shape[1] < WORTH:
            return weight @ x
        out = np.empty((len(weight), x.shape[1]), np.float32)

        def piece(index: int) -> None:
            rows = slice(len(weight) * index // self.count, len(weight) * (index + 1) // self.count)
            np.matmul(weight[rows], x, out=out[rows])

        self.each(piece, range(self.count))
        return out


def _quiet() -> None:
    """numpy's warnings are set for each thread; broken weights show in the logits."""
    np.seterr(all="ignore")


_of = cache(Workers)
_blas = cache(ThreadpoolController)
_current: ContextVar[Workers] = ContextVar("workers")
_alone = Workers(1)


def current() -> Workers:
    """The workers of the ``threads`` block that this code runs in; without one, the calling thread alone."""
    return _current.get(_alone)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it, operations in numpy use ``count`` threads; BLAS uses one by itself, and what it had afterwards."""
    token = _current.set(_of(count))
    try:
        with _blas().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            yield
    finally:
        _current.reset(token)
