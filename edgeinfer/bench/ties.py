"""Where two texts part that should be the same, and whether the model cared.

On backends whose rows depend on each other by rounding, a draft may tip the scales between two tokens that are equally
likely. Any other difference is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence

NEAR_TIE = 0.05
"""Of log-probability: a greater distance is no tie."""


_HOPELESS = -100.0


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two texts have different tokens, or one has ended; None where they are the same."""
    for place, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine != its:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def margin_at(top: Sequence[tuple[int, float]], one: int, other: int) -> float:
    """How much more likely one token is than the other, in log-probability, of the most likely ones. One that is not
    among them is out of the question."""
    known = dict(top)
    return abs(known.get(one, _HOPELESS) - known.get(other, _HOPELESS))
