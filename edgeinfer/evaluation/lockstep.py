"""Several ways to compute the same windows, side by side, so that only a few rows of logits are held at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Backend, Chunk, Rows
from edgeinfer.errors import BadRequest

LOGITS_BYTES = 128 << 20
"""Logits of one side that are held at once."""
LEAST_PIECE = 32
"""Tokens of a window in a step, as long as their logits fit."""
UNSCORED_PIECE = 512


@dataclass(frozen=True, slots=True)
class Side:
    """One way to compute: a backend, and what has to hold while it does."""

    name: str
    backend: Backend
    within: Callable[[], AbstractContextManager[object]] = nullcontext


Observer: TypeAlias = Callable[[int, NDArray[np.int64], NDArray[np.float32]], None]
"""Is given the number of a side, the tokens that follow (R,), and the logits they are predicted with (R, V)."""


def run_in_lockstep(
    sides: Sequence[Side],
    windows: Sequence[Sequence[int]],
    observe: Observer,
    first: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Computes all windows, of one length, on each side, and hands over the logits of rows ``first`` and later.

    All sides see a piece of each window before any of them goes on. ``on_progress`` is given tokens done, and of how
    many. Raises BadRequest for sides of different vocabularies, and what the backends raise.
    """
    vocabulary, length = _common_vocabulary(sides), len(windows[0])
    rows = max(1, LOGITS_BYTES // (4 * vocabulary))
    together = min(len(windows), max(1, rows // LEAST_PIECE))
    done, total = 0, len(windows) * length * len(sides)
    for start in range(0, len(windows), together):
        group = windows[start : start + together]
        states = [[side.backend.open() for _ in group] for side in sides]
        for low, high in _pieces(first, length, max(1, rows // len(group))):
            targets = np.array([token for window in group for token in window[low + 1 : high + 1]], np.int64)
            for index, side in enumerate(sides):
                logits = _step(side, states[index], [window[low:high] for window in group], low >= first)
                if low >= first:
                    observe(index, targets, _predicting(logits, high == length))
                done += len(group) * (high - low)
                on_progress(done, total)
        for state in (state for opened in states for state in opened):
            state.close()


def _common_vocabulary(sides: Sequence[Side]) -> int:
    sizes = {side.backend.info.vocab_size for side in sides}
    if len(sizes) > 1:
        named = ", ".join(f"{side.name} {side.backend.info.vocab_size}" for side in sides)
        raise BadRequest(f"the vocabularies differ ({named} tokens): compare models of one vocabulary", "against")
    return sizes.pop()


def _pieces(first: int, length: int, rows: int) -> list[tuple[int, int]]:
    """Borders of the steps: large ones up to the first row that is scored, then as many rows as may be held."""
    borders = [*range(0, first, UNSCORED_PIECE), *range(first, length, rows), length]
    return list(pairwise(borders))


def _step(side: Side, states: Sequence[Any], tokens: Sequence[Sequence[int]], scored: bool) -> list[Any]:
    with side.within():
        rows: Rows = "all" if scored else "none"
        logits = side.backend.step([Chunk(*pair, rows) for pair in zip(states, tokens, strict=True)])
        arrays = [np.asarray(each, np.float32) for each in logits]  # computes them, where the backend is lazy
    for state, piece in zip(states, tokens, strict=True):
        state.accept(len(piece))
    return arrays


def _predicting(logits: Sequence[NDArray[np.float32]], last: bool) -> NDArray[np.float32]:
    """All rows below each other, without those behind which a window has no token."""
    rows = [each[:-1] if last else each for each in logits]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)
