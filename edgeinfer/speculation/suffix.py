"""Drafts copied from where the text's end occurred before: in this conversation, or in earlier outputs.

The idea of SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), with chances that are learned instead of set: each
step, drafted or not, scores the guess that would have been made against the tokens that came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgeinfer.speculation.costs import Terms
from edgeinfer.speculation.drafter import EMPTY, Draft
from edgeinfer.speculation.matches import Matcher
from edgeinfer.speculation.store import Snapshot
from edgeinfer.speculation.survival import Survival


class SuffixDrafter:
    """Follows one text in its own past and in ``store``. ``on_close`` gets what was learned."""

    name = "suffix"

    def __init__(
        self,
        prompt: Sequence[int],
        survival: Survival,
        store: Snapshot | None = None,
        on_close: Callable[[Survival], None] | None = None,
    ) -> None:
        self._matcher = matcher(prompt, survival, store)
        self._survival = survival
        self._on_close = on_close

    def propose(self, limit: int) -> Draft:
        guess = self._matcher.propose(limit)
        return EMPTY if guess is None else Draft(*guess)

    def set_terms(self, terms: Terms) -> None:
        self._matcher.set_terms(
            terms.ratios, terms.sequences, terms.margin, terms.bubble, terms.least, terms.least_pipelined
        )

    def observe(self, tokens: Sequence[int]) -> None:
        self._matcher.observe(tokens)

    def advance(self, tokens: Sequence[int], limit: int, pipelined: bool) -> int:
        hope: int = self._matcher.advance(tokens, limit, pipelined)
        return hope

    def shadow(self, tokens: Sequence[int]) -> int:
        right: int = self._matcher.shadow(tokens)
        return right

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close(self._survival)


def matcher(prompt: Sequence[int], survival: Survival, store: Snapshot | None) -> Any:
    """The native matcher where it is built, or else Python's."""
    from edgeinfer.native import primitives  # loads MLX

    make = getattr(primitives, "Matcher", None)  # none where nothing is built, or an older extension is
    if make is None:
        found = Matcher(prompt, survival)
        if store is not None and len(store.tokens):
            found.follow(store)
        return found
    native = make(prompt, survival.rates, survival.weights, survival.hits, survival.trials)
    if store is not None and len(store.tokens):
        native.follow(store.tokens, store.order, store.hashes, store.seen)
    return native
