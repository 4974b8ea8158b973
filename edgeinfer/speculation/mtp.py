"""Drafts by the head that a model was trained with to predict further tokens (multi-token prediction).

The head looks at the model's hidden states, so it follows the whole prompt: what it has not seen it cannot attend to.
It has a memory of its own, which stays behind while nothing is drafted and is filled in one pass when it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgeinfer.speculation.drafter import EMPTY, Chooser, Confidence, Draft, Text

if TYPE_CHECKING:
    from edgeinfer.backends.mlx_head import PredictionHead, Trace
    from edgeinfer.cache.kv import LayerKV

_LONGEST = 8  # tokens: the head was trained for one, and goes on by itself after that
_HOPELESS = 0.2
_BEHIND = 512  # hidden states that may wait, before the memory is filled all the same
_REMEMBERED = 4  # closed texts, whose beginnings others may share


@dataclass(slots=True)
class Memory:
    """What the head remembers of a text: a place for each token but the first and those that came since.

    Place i holds the model's state at token ``start + i`` and the token after it.
    """

    layer: LayerKV
    start: int = 0
    length: int = 0
    tokens: list[int] = field(default_factory=list)


class Memories:
    """Of texts that were closed a moment ago, in case the next one begins alike."""

    def __init__(self) -> None:
        self._kept: list[Memory] = []

    def keep(self, memory: Memory) -> None:
        self._kept = [*self._kept, memory][-_REMEMBERED:]

    def find(self, tokens: Sequence[int], cached: int) -> Memory | None:
        """A memory of the first ``cached`` tokens, or of a part of them; None without one.

        The place of the last one is missing: it would hold the token that follows, which may be another one now.
        """
        from edgeinfer.cache.kv import LayerKV

        for memory in reversed(self._kept):
            places = min(cached - 1 - memory.start, memory.length)
            if places > 0 and memory.tokens[:cached] == list(tokens[:cached]):
                return Memory(LayerKV(memory.layer.arrays), cached - places, places, [])
        return None


class MTPDrafter:
    """Follows one text with the model's own ``head``. ``memories`` are those of earlier texts."""

    name = "mtp"

    def __init__(self, head: PredictionHead, text: Text, confidence: Confidence, memories: Memories) -> None:
        from edgeinfer.cache.kv import LayerKV

        assert text.chooser is not None
        state: Any = text.trunk()
        self._head = head
        self._chooser: Chooser = text.chooser
        self._confidence = confidence
        self._memories = memories
        self._tokens = list(text.prompt)
        self._trace: Trace = state.watch()
        cached: int = state.length
        self._memory = memories.find(self._tokens, cached) or Memory(LayerKV(), start=cached)
        self._last: Any = None  # (1, hidden) of the newest place
        self._waiting: Any = None  # (1, hidden) of the model, whose next token is not known yet
        self._certainty: list[float] = []

    def forecast(self, limit: int) -> Sequence[float]:
        return self._confidence.forecast(min(limit, _LONGEST))

    def propose(self, limit: int) -> Draft:
        self._fill()
        if self._last is None:
            return EMPTY
        tokens: list[int] = []
        self._certainty = []
        hidden, length = self._last, self._memory.length
        while True:
            token, certainty = self._chooser.point(self._head.logits(hidden), len(self._tokens) + len(tokens))
            tokens.append(token)
            self._certainty.append(certainty)
            survival = self._confidence.survival(self._certainty)
            if len(tokens) >= min(limit, _LONGEST) or survival[-1] < _HOPELESS:
                return Draft(tokens, survival)
            hidden = self._head.step(self._memory.layer, length, hidden, tokens[-1:], first=False)
            length += 1

    def learn(self, draft: Draft, accepted: int) -> None:
        self._confidence.learn(self._certainty[: len(draft.tokens)], accepted)

    def observe(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        if sum(rows.shape[0] for rows in self._trace.rows) > _BEHIND:
            self._fill()

    def close(self) -> None:
        self._memory.tokens = self._tokens
        self._memories.keep(self._memory)

    def _fill(self) -> None:
        """Brings the memory up to the last token, in one pass over the states that came since."""
        import mlx.core as mx

        taken = self._trace.take()
        rows = self._waiting
        if taken is not None:
            rows = taken[1] if rows is None else mx.concatenate([rows, taken[1]])
        if rows is None:
            return
        memory = self._memory
        first = memory.start + memory.length + 1  # the token that the first row is joined with
        tokens = self._tokens[first : first + rows.shape[0]]
        self._waiting = rows[len(tokens) :] if len(tokens) < rows.shape[0] else None
        if tokens:
            out = self._head.step(memory.layer, memory.length, rows[: len(tokens)], tokens, first=True)
            memory.length += len(tokens)
            self._last = out[-1:]
