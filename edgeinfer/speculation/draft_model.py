"""Drafts by another model with the same vocabulary: a smaller one, or the first layers of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.backends.base import Backend, Chunk
from edgeinfer.backends.rows import on_host
from edgeinfer.errors import LimitExceeded
from edgeinfer.speculation.drafter import EMPTY, Chooser, Confidence, Draft, Proposal, Text

_LONGEST = 12  # tokens: nothing that is drafted one by one stays likely for longer
_HOPELESS = 0.2  # survival below which no further token is drafted
_SLICE = 512  # tokens of a prompt in a step


class ModelDrafter:
    """Follows a text with ``backend``, which others may share: the sequence is its own.

    Drafts are made on a fork of the sequence, which is given up once they are verified; what came true is computed
    again together with the token that came instead. ``sampled``: tokens are drawn, and come with their distribution.
    """

    def __init__(
        self, name: str, backend: Backend, text: Text, confidence: Confidence, *, sampled: bool = False
    ) -> None:
        assert text.chooser is not None
        self.name = name
        self._backend = backend
        self._chooser: Chooser = text.chooser
        self._confidence = confidence
        self._sampled = sampled and text.temperature > 0
        self._tokens = list(text.prompt)
        self._state: Any = None
        self._last_row: Any = None  # the logits after the tokens that the sequence holds
        self._certainty: list[float] = []

    def forecast(self, limit: int) -> Sequence[float]:
        room = self._backend.info.context - len(self._tokens) - 1
        return self._confidence.forecast(max(0, min(limit, room, _LONGEST)))

    def propose(self, limit: int) -> Draft:
        room = self._backend.info.context - len(self._tokens) - 1
        limit = min(limit, room, _LONGEST)
        if limit < 1:
            return EMPTY
        row = self._caught_up()
        tokens: list[int] = []
        proposals: list[Proposal] = []
        self._certainty = []
        fork = self._state.fork() if limit > 1 else None
        try:
            while True:
                tokens.append(self._chosen(row, len(self._tokens) + len(tokens), proposals))
                if fork is None or len(tokens) == limit or self._hopeless():
                    break
                row = on_host(self._backend.step([Chunk(fork, tokens[-1:])])[0][-1])
                fork.accept(1)
        finally:
            if fork is not None:
                fork.close()
        return Draft(tokens, self._confidence.survival(self._certainty), proposals)

    def learn(self, draft: Draft, accepted: int) -> None:
        self._confidence.learn(self._certainty[: len(draft.tokens)], accepted)

    def observe(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None

    def _chosen(self, row: npt.NDArray[np.float32], position: int, proposals: list[Proposal]) -> int:
        if not self._sampled:
            token, certainty = self._chooser.point(row, position)
        else:
            token, proposal = self._chooser.drawn(row, position)
            proposals.append(proposal)
            certainty = float(proposal.max())  # not the drawn token's: a length must not depend on what was drawn
        self._certainty.append(certainty)
        return token

    def _hopeless(self) -> bool:
        return not self._sampled and self._confidence.survival(self._certainty)[-1] < _HOPELESS

    def _caught_up(self) -> npt.NDArray[np.float32]:
        """The logits (V,) after all tokens of the text."""
        if self._state is None:
            try:
                self._state = self._backend.open(self._tokens)
            except LimitExceeded as error:
                raise RuntimeError(f"no sequence is left for it: {error}") from error
        while self._state.length < len(self._tokens):
            part = self._tokens[self._state.length : self._state.length + _SLICE]
            last = self._state.length + len(part) == len(self._tokens)
            logits = self._backend.step([Chunk(self._state, part, "last" if last else "none")])[0]
            self._state.accept(len(part))
            self._last_row = on_host(logits[-1]) if last else None
        row: npt.NDArray[np.float32] = self._last_row
        return row
