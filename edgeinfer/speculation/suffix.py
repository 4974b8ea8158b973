"""Drafts copied from where the text's end occurred before: in this conversation, or in earlier outputs.

The idea of SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), with chances that are learned instead of set: each
step, drafted or not, scores the guess that would have been made against the tokens that came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeinfer.speculation.drafter import EMPTY, Draft
from edgeinfer.speculation.matches import Context, Corpus, Follower
from edgeinfer.speculation.survival import Survival


class SuffixDrafter:
    """Follows one text in its own past and in ``store``. ``on_close`` gets what was learned."""

    name = "suffix"

    def __init__(
        self,
        prompt: Sequence[int],
        survival: Survival,
        store: Corpus | None = None,
        on_close: Callable[[Survival], None] | None = None,
    ) -> None:
        self._context = Context(prompt)
        self._survival = survival
        self._on_close = on_close
        self._followers = [Follower(self._context, 0)]
        if store is not None and len(store.tokens):
            self._followers.append(Follower(store, 1))
        for follower in self._followers:
            follower.look_up(self._context.tokens)
        self._guesses: list[tuple[list[int], list[int]]] = []  # tokens and cells of the last proposals

    def propose(self, limit: int) -> Draft:
        best = EMPTY
        self._guesses.clear()
        for follower in self._followers:
            tokens, survival, cells = follower.guess(limit, self._survival.rates)
            if tokens:
                self._guesses.append((tokens, cells))
                draft = Draft(tokens, survival)
                if draft.expected > best.expected:
                    best = draft
        return best

    def observe(self, tokens: Sequence[int]) -> None:
        for guessed, cells in self._guesses:
            for token, guess, cell in zip(tokens, guessed, cells, strict=False):
                self._survival.learn(cell, token == guess)
                if token != guess:
                    break
        self._guesses.clear()
        context = self._context
        for token in tokens:
            context.add(token)
            for follower in self._followers:
                follower.advance(token, context.tokens)

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close(self._survival)
