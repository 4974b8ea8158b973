"""Tokens to events: decoded, cut at a stop string, split into thoughts, answer and calls, with their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from edgeinfer.generation.reasoning import Markers, Reasoning, Segment, Splitter
from edgeinfer.generation.stopping import StopFinder
from edgeinfer.generation.toolcalls import Tools
from edgeinfer.generation.toolfinder import ToolFinder
from edgeinfer.types import Delta, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta


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

    def __init__(
        self, decoder: Decoder, stops: Sequence[str], reasoning: Reasoning | None, tools: Tools | None = None
    ) -> None:
        self._decoder = decoder
        self._stops = StopFinder(stops)
        self._splitter = Splitter(reasoning)
        self._finder = ToolFinder(tools)
        self._pending: deque[_Written] = deque()
        self._decoded = 0
        self._settled = 0
        self.step = 0  # of the model, that tokens are added from

    @property
    def stop(self) -> str | None:
        """The stop string that was found; no token may be added after it."""
        return self._stops.found

    @property
    def thinking(self) -> Markers | None:
        """The markers of the thoughts that are being written."""
        return self._splitter.open

    def add(self, token: int, logprob: TokenLogprob | None = None) -> list[Delta]:
        """The events that this token completes."""
        self._pending.append(_Written(token, self._decoded, logprob))
        return self._write(self._decoder.add(token))

    def finish(self) -> list[Delta]:
        """The events of what was still held back, when no more tokens come."""
        events: list[Delta] = []
        if self.stop is None:
            events += self._write(self._decoder.finish())
        held = self._stops.finish()
        self._settled += len(held)
        events += self._events([*self._splitter.push(held), *self._splitter.finish()])
        events += map(self._event, self._finder.finish())
        rest = self._settled if self.stop is not None else self._decoded + 1
        if self._pending and self._pending[0].start < rest:
            events.append(self._event(Segment("", "reasoning" if self.thinking else "text", rest)))
        return events

    def _write(self, piece: str) -> list[Delta]:
        self._decoded += len(piece)
        settled = self._stops.push(piece)
        self._settled += len(settled)
        return self._events(self._splitter.push(settled))

    def _events(self, segments: Sequence[Segment]) -> list[Delta]:
        events: list[Delta] = []
        for segment in segments:
            found = [segment] if segment.kind == "reasoning" else self._finder.push(segment)
            events += map(self._event, found)
        return events

    def _event(self, segment: Segment) -> Delta:
        tokens: list[_Written] = []
        while self._pending and self._pending[0].start < segment.end:
            tokens.append(self._pending.popleft())
        ids = tuple(token.id for token in tokens)
        logprobs = tuple(token.logprob for token in tokens if token.logprob is not None)
        if segment.kind == "tools":
            return ToolCallDelta(segment.text, ids, logprobs, segment.calls, self.step)
        return (ReasoningDelta if segment.kind == "reasoning" else TextDelta)(segment.text, ids, logprobs, self.step)
