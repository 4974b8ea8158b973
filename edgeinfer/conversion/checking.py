"""The MLX engine and llama.cpp on the same file and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.evaluation.lockstep import Side, run_in_lockstep
from edgeinfer.evaluation.model import EvaluatedModel
from edgeinfer.evaluation.scores import Comparison, Divergence, Floats, log_softmax

AGREES = 0.95
"""The share of equal best tokens below which two engines do not compute the same model."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the best tokens first differ: the window, the place in it, and what each engine would say."""

    window: int
    place: int
    mlx: int
    llama_cpp: int
    gap: float  # nats between both tokens as llama.cpp has them: a small one is a tie that rounding decides


@dataclass(frozen=True, slots=True)
class Agreement:
    divergence: Divergence  # KL(llama.cpp || MLX)
    first: Parting | None  # None where the best tokens never differ
    windows: int

    @property
    def agrees(self) -> bool:
        return self.divergence.top >= AGREES


def agreement(
    model: EvaluatedModel,
    windows: Sequence[Sequence[int]],
    threads: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """Compares every place of every window. Raises what loading in either engine raises."""
    context = len(windows[0])
    comparison, places = Comparison(), 0
    expected: list[Floats] = []
    partings: list[Parting] = []

    def observe(side: int, targets: NDArray[np.int64], logits: Floats) -> None:
        nonlocal places
        if side == 0:
            expected[:] = [log_softmax(logits)]
            return
        found = log_softmax(logits)
        if not partings:
            partings.extend(_first_parting(expected[0], found, places, context - 1)[:1])
        places += len(targets)
        comparison.add(expected[0], found, targets)

    with ExitStack() as closing:
        sides = []
        for name in ("llama.cpp", "mlx"):
            loaded = model.load(name, context, threads)
            closing.callback(loaded.close)
            sides.append(Side(name, loaded))
        for window in windows:  # one after the other, so that places are counted in the order of the text
            run_in_lockstep(sides, [window], observe, 0, on_progress)
    return Agreement(comparison.result(), partings[0] if partings else None, len(windows))


def _first_parting(reference: Floats, other: Floats, before: int, per_window: int) -> list[Parting]:
    theirs, ours = reference.argmax(axis=1), other.argmax(axis=1)
    rows = np.flatnonzero(theirs != ours)
    if not len(rows):
        return []
    row = int(rows[0])
    window, place = divmod(before + row, per_window)
    gap = float(reference[row, theirs[row]] - reference[row, ours[row]])
    return [Parting(window, place, int(ours[row]), int(theirs[row]), gap)]
