"""The one verifier: which tokens a step gives whose rows belong to a draft.

A draft has no weight of its own: each row is sampled as it would have been without one, with its own history and its
own random number, and the next row counts only while the guess was right. So the text is the same with every drafter
and none, under any sampler (Leviathan et al., 2023, for a proposal that is a point mass).

Tokens that a drafter drew come with the distributions that they were drawn from. These are accepted more often, and the
text keeps the model's distribution, but is another one than without drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edgeinfer.backends.rows import on_host
from edgeinfer.generation.sampler import Choice, Sampler, not_finite
from edgeinfer.speculation.drafter import Proposal


def verified(
    sampler: Sampler,
    xp: Any,
    logits: Any,
    draft: Sequence[int],
    history: Sequence[int],
    proposals: Sequence[Proposal] = (),
) -> Iterator[Choice]:
    """The token that follows ``history``, and after each that equals the draft's the one that follows it.

    logits: (1 + len(draft), V). The caller appends each token to ``history`` before it asks for the next one.
    xp: ``mlx.core`` where plain decoding samples on the device; None where it does on the host.
    """
    if xp is None or proposals:
        choices = _on_host(sampler, logits, history, list(zip(draft, proposals, strict=False)))
    else:
        choices = _on_device(sampler, xp, logits, len(history))
    for place, choice in enumerate(choices):
        yield choice
        if place == len(draft) or choice.id != draft[place]:
            return


def _on_host(
    sampler: Sampler, logits: Any, history: Sequence[int], drawn: Sequence[tuple[int, Proposal]]
) -> Iterator[Choice]:
    for place, row in enumerate(logits):
        yield sampler.on_host(on_host(row), history, drawn[place] if place < len(drawn) else None)


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
