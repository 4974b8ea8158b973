"""The one verifier: which tokens a step gives whose rows belong to a draft.

A draft has no weight of its own: each row is sampled as it would have been without one, with its own history and its
own random number, and the next row counts only while the guess was right. So the text is the same with every drafter
and none, under any sampler (Leviathan et al., 2023, for a proposal that is a point mass).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.generation.sampler import Choice, Sampler, not_finite


def verified(sampler: Sampler, xp: Any, logits: Any, draft: Sequence[int], history: Sequence[int]) -> Iterator[Choice]:
    """The token that follows ``history``, and after each that equals the draft's the one that follows it.

    logits: (1 + len(draft), V). The caller appends each token to ``history`` before it asks for the next one.
    xp: ``mlx.core`` where plain decoding samples on the device; None where it does on the host.
    """
    choices = _on_device(sampler, xp, logits, len(history)) if xp is not None else _on_host(sampler, logits, history)
    for place, choice in enumerate(choices):
        yield choice
        if place == len(draft) or choice.id != draft[place]:
            return


def on_host(row: Any) -> npt.NDArray[np.float32]:
    """A row of logits, (V,), as numpy has it."""
    if isinstance(row, np.ndarray):
        return row.astype(np.float32, copy=False)
    import mlx.core

    return np.array(row.astype(mlx.core.float32))


def _on_host(sampler: Sampler, logits: Any, history: Sequence[int]) -> Iterator[Choice]:
    for row in logits:
        yield sampler.on_host(on_host(row), history)


def _on_device(sampler: Sampler, xp: Any, logits: Any, position: int) -> Iterator[Choice]:
    """Greedy rows all at once; sampled ones in growing groups, since what comes after a wrong guess is for nothing."""
    start, rows = 0, logits.shape[0]
    while start < rows:
        if sampler.params.greedy:
            stop, tokens = rows, sampler.greedy_rows(xp, logits)
        else:
            stop = min(rows, 2 * start + 1)
            tokens = xp.concatenate(
                [sampler.on_device(xp, logits[place], position + place) for place in range(start, stop)]
            )
        for place, token in enumerate(tokens.tolist(), start):
            if token < 0:
                raise not_finite(position + place)
            yield Choice(token)
        start = stop
