"""Where the end of a growing text occurred before, and how many tokens back it is the same there.

``native/core/matcher.cpp`` does the same in a tenth of the time, where it is built.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul, neg
from typing import Protocol, TypeAlias

from edgeinfer.speculation.controller import admit
from edgeinfer.speculation.drafter import FAINT, HOPEFUL, NO_GUESS, Draft
from edgeinfer.speculation.survival import LONGEST, Survival, cell_of, run_of_cells

Found: TypeAlias = Sequence[tuple[Sequence[int], int]]
"""Places, the newest last, and how many tokens before them are known to be the same."""

_VOTERS = 10  # places that are asked how the text goes on
_LONG = 8  # equal tokens, from which on no other places are looked for
_FLOOR = 0.06  # survival below which a draft is not prolonged
BORDER = -1
"""Stands between the texts of a corpus."""


class Corpus(Protocol):
    """Tokens with an index. ``BORDER`` stands between its texts."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def places(self, tail: Sequence[int]) -> Found:
        """The indices after copies of the end of ``tail``."""


class Follower:
    """The places in one corpus that the text's end matches, followed from token to token."""

    def __init__(self, corpus: Corpus, source: int) -> None:
        self.corpus = corpus
        self._source = source
        self._lengths: dict[int, int] = {}

    def advance(self, token: int, text: Sequence[int]) -> None:
        """The text went on with ``token``, which is the last of ``text``."""
        tokens, size = self.corpus.tokens, len(self.corpus.tokens)
        found = {
            place + 1: length + 1 for place, length in self._lengths.items() if place < size and tokens[place] == token
        }
        self._lengths = found
        if not found or max(found.values()) < _LONG:
            self.look_up(text)

    def look_up(self, text: Sequence[int]) -> None:
        """Adds the places that the index knows, with all their equal tokens."""
        tokens, found, size = self.corpus.tokens, self._lengths, len(text)
        for places, known in self.corpus.places(text[-3:]):
            for place in reversed(places):
                if place in found:
                    continue
                length, most = known, min(place, size, LONGEST)
                while length < most and tokens[place - 1 - length] == text[-1 - length]:
                    length += 1
                found[place] = length

    def guess(self, limit: int, rates: Sequence[float]) -> tuple[list[int], list[float], list[int]]:
        """Tokens, their survival and their cells: what most of the places with the longest matches go on with."""
        out: list[int] = []
        survival: list[float] = []
        cells: list[int] = []
        if not self._lengths or limit < 1:
            return out, survival, cells
        longest = max(self._lengths.values())
        voters = [place for place, length in self._lengths.items() if 2 * length >= longest]
        if len(voters) > 1:
            voters = sorted(voters, key=lambda place: (-self._lengths[place], -place))[:_VOTERS]
        texts = [text for text in (self._text(place, limit) for place in voters) if text]
        chance = 1.0
        while texts and len(out) < limit:
            ahead = len(out)
            if all(text == texts[0] for text in texts[1:]):
                self._go_on(texts[0][ahead:], longest + ahead, len(texts), chance, rates, (out, survival, cells))
                break
            heads: list[int] = [text[ahead] for text in texts]
            token = max(heads, key=heads.count)
            cell = cell_of(self._source, longest + ahead, len(heads), heads.count(token))
            chance *= rates[cell]
            if out and chance < _FLOOR:
                break
            out.append(token)
            survival.append(chance)
            cells.append(cell)
            texts = [text for text in texts if text[ahead] == token and len(text) > ahead + 1]
        return out, survival, cells

    def _go_on(
        self,
        text: Sequence[int],
        length: int,
        voters: int,
        chance: float,
        rates: Sequence[float],
        guess: tuple[list[int], list[float], list[int]],
    ) -> None:
        """Adds ``text``, on which all voters agree, as far as it is likely."""
        cells = run_of_cells(self._source, length, voters > 1, len(text))
        survival = list(accumulate((rates[cell] for cell in cells), mul, initial=chance))[1:]
        count = len(text)
        if survival and survival[-1] < _FLOOR:
            count = max(not guess[0], bisect_right(survival, -_FLOOR, key=neg))
        out, chances, kinds = guess
        out += text[:count]
        chances += survival[:count]
        kinds += cells[:count]

    def _text(self, place: int, limit: int) -> Sequence[int]:
        """What follows a place. A copy that reaches the text's own end goes on with what it has copied itself."""
        text = self.corpus.tokens[place : place + limit]
        if self._source:
            return text[: text.index(BORDER)] if BORDER in text else text
        if 0 < len(text) < limit:
            text = (list(text) * (limit // len(text) + 1))[:limit]
        return text


_RECENT_PAIRS = 16
_RECENT_SINGLES = 6
_ENOUGH = 3  # places with two equal tokens, beyond which one equal token is not looked at


class Context:
    """The text itself as a corpus: grows by a token at a time, and remembers where each one and each pair stood."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._singles: dict[int, list[int]] = {}
        self._pairs: dict[int, list[int]] = {}
        self._last = -1
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Indexes what stood before, so that the text's end never finds itself."""
        place = len(self.tokens)
        if place:
            self._singles.setdefault(self._last, []).append(place)
        if place > 1:
            self._pairs.setdefault(self.tokens[-2] << 32 | self._last, []).append(place)
        self.tokens.append(token)
        self._last = token

    def places(self, tail: Sequence[int]) -> Found:
        pairs = self._pairs.get(tail[-2] << 32 | tail[-1], ())[-_RECENT_PAIRS:] if len(tail) > 1 else ()
        if len(pairs) >= _ENOUGH:
            return ((pairs, 2),)
        return (pairs, 2), (self._singles.get(tail[-1], ())[-_RECENT_SINGLES:], 1)


class Matcher:
    """Guesses how a text goes on, from its own past and from stores; ``survival`` learns how good they were."""

    def __init__(self, prompt: Sequence[int], survival: Survival) -> None:
        self._context = Context(prompt)
        self._survival = survival
        self._followers: list[Follower] = []
        self._guesses: list[tuple[list[int], list[int]]] = []  # tokens and cells of the last proposals
        self.set_terms((), 1, 0.0, 0.0, 2.0, 2.0)  # by which nothing pays
        self._add(self._context, 0)

    def follow(self, store: Corpus) -> None:
        """Guesses from a store as well."""
        self._add(store, 1)

    def propose(self, limit: int) -> tuple[Sequence[int], Sequence[float]] | None:
        """Tokens and their survival: the guess that is expected to give most."""
        best, most = None, 0.0
        self._guesses.clear()
        for follower in self._followers:
            tokens, survival, cells = follower.guess(limit, self._survival.rates)
            if tokens:
                self._guesses.append((tokens, cells))
                if (expected := sum(survival)) > most:
                    best, most = (tokens, survival), expected
        return best

    def set_terms(
        self,
        ratios: Sequence[float],
        sequences: int,
        margin: float,
        bubble: float,
        least: float,
        least_pipelined: float,
    ) -> None:
        """Those of ``costs.Terms``."""
        self._ratios, self._sequences, self._margin = ratios, sequences, margin
        self._bubble, self._least = (0.0, bubble), (least, least_pipelined)

    def observe(self, tokens: Sequence[int]) -> None:
        """The text went on: teaches every guess, also those that were not taken."""
        for guessed, cells in self._guesses:
            for token, guess, cell in zip(tokens, guessed, cells, strict=False):
                self._survival.learn(cell, token == guess)
                if token != guess:
                    break
        self._guesses.clear()
        for token in tokens:
            self._context.add(token)
            for follower in self._followers:
                follower.advance(token, self._context.tokens)

    def advance(self, tokens: Sequence[int], limit: int, pipelined: bool) -> int:
        """Observes, and says what the next guess is worth: exactly where a step has one sequence; of several, whether
        any draft pays whose first token is so likely."""
        self.observe(tokens)
        guess = self.propose(limit)
        if guess is None:
            return NO_GUESS
        chances = guess[1][pipelined:]
        if not chances or chances[0] < self._least[pipelined]:
            return FAINT
        if self._sequences > 1:
            return HOPEFUL
        count = admit([Draft((), chances)], 1, self._ratios, self._margin)[0]
        saved = 1 + sum(chances[:count]) - self._ratios[1 + count] / self._ratios[1]
        return HOPEFUL if saved > self._bubble[pipelined] else FAINT

    def shadow(self, tokens: Sequence[int]) -> int:
        """Observes one token after the other, and guesses each; how many of the last ones were guessed."""
        right = 0
        for token in tokens:
            guess = self.propose(1)
            right = right + 1 if guess and guess[0][0] == token else 0
            self.observe([token])
        return right

    def _add(self, corpus: Corpus, source: int) -> None:
        follower = Follower(corpus, source)
        follower.look_up(self._context.tokens)
        self._followers.append(follower)
