"""Perplexity of one way to compute, and divergences of others from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.evaluation.lockstep import Side, run_in_lockstep
from edgeinfer.evaluation.scores import Comparison, Divergence, Floats, Perplexity, likelihood, log_softmax

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    pass


def scored_from(windows: Sequence[Sequence[int]]) -> int:
    """The first row that counts: the middle of a window, so that each token has half a window before it."""
    return len(windows[0]) // 2


def perplexity(side: Side, windows: Sequence[Sequence[int]], on_progress: Progress = silent) -> Perplexity:
    """llama-perplexity's definition: tokens of each window's second half, by all that stands before them in it."""
    found: list[NDArray[np.float64]] = []

    def observe(_: int, targets: NDArray[np.int64], logits: Floats) -> None:
        found.append(likelihood(logits, targets))

    run_in_lockstep([side], windows, observe, scored_from(windows), on_progress)
    return Perplexity.of(np.concatenate(found))


def divergences(
    reference: Side,
    others: Sequence[Side],
    windows: Sequence[Sequence[int]],
    first: int,
    on_progress: Progress = silent,
) -> list[Divergence]:
    """Each of ``others`` against ``reference``, over rows ``first`` and later of each window."""
    compared = [Comparison() for _ in others]
    expected: list[Floats] = []

    def observe(side: int, targets: NDArray[np.int64], logits: Floats) -> None:
        if side == 0:
            expected[:] = [log_softmax(logits)]
        else:
            compared[side - 1].add(expected[0], log_softmax(logits), targets)

    run_in_lockstep([reference, *others], windows, observe, first, on_progress)
    return [each.result() for each in compared]
