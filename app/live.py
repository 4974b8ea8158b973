"""The figures of a reply while it is made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from edgeinfer.app.render.figures import seconds
from edgeinfer.types import Event, Finished, ReasoningDelta

WINDOW_SECONDS = 1.0
"""Over which the speed is taken."""


class Live:
    """Counts tokens as they come; ``rate`` is what the last second gave."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.started = clock()
        self.first = 0.0  # seconds to the first token
        self.tokens = 0
        self.thinking = False
        self._thought_tokens = 0
        self._thought_since = self._thought_for = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    def count(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._stop_thinking()
            return
        now = self._clock()
        if not self.tokens:
            self.first = now - self.started
        self.tokens += len(event.ids)
        self._recent.append((now, len(event.ids)))
        if isinstance(event, ReasoningDelta):
            if not self.thinking:
                self.thinking, self._thought_since = True, now
            self._thought_tokens += len(event.ids)
        else:
            self._stop_thinking()

    @property
    def rate(self) -> float:
        """Tokens a second, over the last second or since the first token."""
        now = self._clock()
        while self._recent and now - self._recent[0][0] > WINDOW_SECONDS:
            self._recent.popleft()
        span = min(WINDOW_SECONDS, now - self.started - self.first)
        return sum(tokens for _, tokens in self._recent) / span if span > 0 else 0.0

    @property
    def thought(self) -> str:
        """How long it thought, or has been thinking."""
        running = self._clock() - self._thought_since if self.thinking else 0.0
        word = "thinking for" if self.thinking else "thought for"
        return f"{word} {seconds(self._thought_for + running)} · {self._thought_tokens:,} tokens"

    def _stop_thinking(self) -> None:
        if self.thinking:
            self.thinking = False
            self._thought_for += self._clock() - self._thought_since
