"""Tokens to events: decoded, cut at a stop string, split into thoughts and answer, each with its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from edgeinfer.generation.reasoning import Reasoning, Segment, Splitter
from edgeinfer.generation.stopping import StopFinder
from edgeinfer.types import ReasoningDelta, TextDelta, TokenLogprob


class Decoder(Protocol):
    """Streaming detokenization: complete characters only."""

    def add(self, token: int, /) -> str: ...

    def finish(self) -> str: ...


class _Written(NamedTuple):
    id: int
    start: int  # characters of the answer before this token
    logprob: TokenLogprob | None


class Writer:
    """Turns the tokens of one answer into events.

    An event carries the ids of the tokens whose text begins before its end and was in no event yet. So all ids
    together are the answer's tokens; after a stop string they end with the last token that begins before the cut.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str], reasoning: Reasoning | None) -> None:
        self._decoder = decoder
        self._stops = StopFinder(stops)
        self._splitter = Splitter(reasoning)
        self._pending: deque[_Written] = deque()
        self._decoded = 0
        self._settled = 0

    @property
    def stop(self) -> str | None:
        """The stop string that was found; no token may be added after it."""
        return self._stops.found

    def add(self, token: int, logprob: TokenLogprob | None = None) -> list[TextDelta | ReasoningDelta]:
        """The events that this token completes."""
        self._pending.append(_Written(token, self._decoded, logprob))
        return self._write(self._decoder.add(token))

    def finish(self) -> list[TextDelta | ReasoningDelta]:
        """The events of what was still held back, when no more tokens come."""
        events: list[TextDelta | ReasoningDelta] = []
        if self.stop is None:
            events += self._write(self._decoder.finish())
        held = self._stops.finish()
        self._settled += len(held)
        segments = [*self._splitter.push(held), *self._splitter.finish()]
        events += map(self._event, segments)
        rest = self._settled if self.stop is not None else self._decoded + 1
        if self._pending and self._pending[0].start < rest:
            events.append(self._event(Segment("", self._splitter.thinking, rest)))
        return events

    def _write(self, piece: str) -> list[TextDelta | ReasoningDelta]:
        self._decoded += len(piece)
        settled = self._stops.push(piece)
        self._settled += len(settled)
        return [self._event(segment) for segment in self._splitter.push(settled)]

    def _event(self, segment: Segment) -> TextDelta | ReasoningDelta:
        tokens: list[_Written] = []
        while self._pending and self._pending[0].start < segment.end:
            tokens.append(self._pending.popleft())
        kind = ReasoningDelta if segment.thinking else TextDelta
        ids = tuple(token.id for token in tokens)
        return kind(segment.text, ids, tuple(token.logprob for token in tokens if token.logprob is not None))
