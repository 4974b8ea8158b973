"""The figures of a reply while it is made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from edgeinfer.app.render.figures import seconds
from edgeinfer.types import Event, Finished, ReasoningDelta

WINDOW_SECONDS = 1.0
"""Over which the speed is taken."""


class _Came(NamedTuple):
    """Tokens of one event, when they came, and how many steps of the model there had been."""

    at: float
    tokens: int
    step: int


class Live:
    """Counts tokens as they come; ``rate`` and ``tokens_per_step`` are what the last second gave."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.started = clock()
        self.first = 0.0  # seconds to the first token
        self.tokens = 0
        self.thinking = False
        self._thought_tokens = 0
        self._thought_since = self._thought_for = 0.0
        self._recent: deque[_Came] = deque()

    def count(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._stop_thinking()
            return
        now = self._clock()
        if not self.tokens:
            self.first = now - self.started
        self.tokens += len(event.ids)
        self._recent.append(_Came(now, len(event.ids), event.step))
        if isinstance(event, ReasoningDelta):
            if not self.thinking:
                self.thinking, self._thought_since = True, now
            self._thought_tokens += len(event.ids)
        else:
            self._stop_thinking()

    @property
    def rate(self) -> float:
        """Tokens a second, over the last second or since the first token."""
        now = self._forget()
        span = min(WINDOW_SECONDS, now - self.started - self.first)
        return sum(came.tokens for came in self._recent) / span if span > 0 else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step of the model gave, more than 1 where drafts came true; 0 where there were no two steps."""
        self._forget()
        first = self._recent[0].step if self._recent else 0
        steps = self._recent[-1].step - first if self._recent else 0
        return sum(came.tokens for came in self._recent if came.step > first) / steps if steps else 0.0

    @property
    def thought(self) -> str:
        """How long it thought, or has been thinking."""
        running = self._clock() - self._thought_since if self.thinking else 0.0
        word = "thinking for" if self.thinking else "thought for"
        return f"{word} {seconds(self._thought_for + running)} · {self._thought_tokens:,} tokens"

    def _forget(self) -> float:
        """Lets go of what came earlier than the last second; the time now."""
        now = self._clock()
        while self._recent and now - self._recent[0].at > WINDOW_SECONDS:
            self._recent.popleft()
        return now

    def _stop_thinking(self) -> None:
        if self.thinking:
            self.thinking = False
            self._thought_for += self._clock() - self._thought_since
