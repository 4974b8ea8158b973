"""How many tokens of prompts a step takes: as many as keep a step short, for a stop to be heard in time."""

from __future__ import annotations

SECONDS = 0.25
"""What a step with a slice of a prompt may take; a stop waits for one of them at most."""
LEAST = 16
_GUESS = 2e11  # operations a second of a slow machine, before anything was measured
_WEIGHT = 0.5  # of the newest measurement


class Slices:
    """``size`` tokens may be computed in the next step.

    The sizes are powers of two up to ``most``. Where the tokens of a model do not depend on how a prompt is cut
    (``free``), the size follows from how long steps took; elsewhere it stays at ``most``, so that a seed repeats.
    """

    def __init__(self, most: int, free: bool, parameters: int) -> None:
        self._most = most
        self._free = free
        self._rate = _GUESS / (2 * max(1, parameters))  # tokens a second

    @property
    def size(self) -> int:
        if not self._free:
            return self._most
        wanted = max(LEAST, int(self._rate * SECONDS))
        return min(self._most, 1 << wanted.bit_length() - 1)

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that did nothing but a slice of ``tokens`` took so long."""
        if tokens >= LEAST and seconds > 0:
            self._rate += _WEIGHT * (tokens / seconds - self._rate)
