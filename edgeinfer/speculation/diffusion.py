"""Drafts by a model that also fills in masked tokens, a block at a time, and verifies them as it decodes.

The block is the last token and masks; a row's logits are those of its own place. One pass drafts all of it: the linear
self-speculation of Nemotron-Labs-Diffusion (NVIDIA, 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.backends.rows import on_host
from edgeinfer.speculation.drafter import EMPTY, Chooser, Confidence, Draft, Text


class DiffusionDrafter:
    """Follows one text with the model that ``backend`` runs."""

    name = "diffusion"

    def __init__(self, backend: Any, text: Text, confidence: Confidence) -> None:
        assert text.chooser is not None
        self._backend = backend
        self._mask: int
        self._longest: int
        self._mask, self._longest = backend.block
        self._state: Any = text.trunk()
        self._chooser: Chooser = text.chooser
        self._confidence = confidence
        self._last = text.prompt[-1]
        self._certainty: list[float] = []

    def forecast(self, limit: int) -> Sequence[float]:
        return self._confidence.forecast(self._room(limit))

    def propose(self, limit: int) -> Draft:
        count = self._room(limit)
        if count < 1:
            return EMPTY
        rows = on_host(self._backend.filled(self._state, [self._last, *[self._mask] * count]))
        position = self._state.length + 1
        chosen = [self._chooser.point(row, position + place) for place, row in enumerate(rows[1:])]
        self._certainty = [certainty for _, certainty in chosen]
        return Draft([token for token, _ in chosen], self._confidence.survival(self._certainty))

    def learn(self, draft: Draft, accepted: int) -> None:
        self._confidence.learn(self._certainty[: len(draft.tokens)], accepted)

    def observe(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def close(self) -> None:
        self._state = None

    def _room(self, limit: int) -> int:
        free: int = self._backend.info.context - self._state.length - 1
        return max(0, min(limit, self._longest - 1, free))
