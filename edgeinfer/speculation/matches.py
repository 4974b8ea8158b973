"""Where the end of a growing text occurred before, and how many tokens back it is the same there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from edgeinfer.speculation.survival import LONGEST, cell_of

_VOTERS = 12  # places that are asked how the text goes on
_FOLLOWED = 48  # places that are followed at a time
_RECENT_PAIRS = 24
_RECENT_SINGLES = 8
_ENOUGH = 4  # places with two equal tokens, beyond which one equal token is not looked at
_FLOOR = 0.04  # survival below which a draft is not prolonged


class Corpus(Protocol):
    """Tokens with an index. A negative token is a border."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def places(self, tail: Sequence[int], known: int) -> Iterable[tuple[int, int]]:
        """(index after a copy of the end of ``tail``, equal tokens) pairs, where ``known`` places are known already."""


class Follower:
    """The places in one corpus that the text's end matches, followed from token to token."""

    def __init__(self, corpus: Corpus, source: int) -> None:
        self.corpus = corpus
        self._source = source
        self._lengths: dict[int, int] = {}

    def restart(self, text: Sequence[int]) -> None:
        """Looks the end of ``text`` up and counts equal tokens backwards."""
        tokens = self.corpus.tokens
        self._lengths = {}
        for place, length in self.corpus.places(text[-3:], 0):
            while length < min(place, len(text), LONGEST) and tokens[place - 1 - length] == text[-1 - length]:
                length += 1
            self._lengths[place] = length

    def advance(self, token: int, tail: Sequence[int]) -> None:
        """The text went on with ``token``; ``tail`` are its last three tokens, that one among them."""
        tokens, size = self.corpus.tokens, len(self.corpus.tokens)
        found = {
            place + 1: length + 1 for place, length in self._lengths.items() if place < size and tokens[place] == token
        }
        if len(found) < _FOLLOWED:
            for place, length in self.corpus.places(tail, len(found)):
                found.setdefault(place, length)
        self._lengths = found

    def guess(self, limit: int, rates: Sequence[float]) -> tuple[list[int], list[float], list[int]]:
        """Tokens, their survival and their cells: what most of the places with the longest matches go on with."""
        out: list[int] = []
        survival: list[float] = []
        cells: list[int] = []
        if not self._lengths:
            return out, survival, cells
        ranked = sorted(((length, place) for place, length in self._lengths.items()), reverse=True)
        longest = ranked[0][0]
        voters = [place for length, place in ranked[:_VOTERS] if 2 * length >= longest]
        chance = 1.0
        while len(out) < limit:
            token, agreeing = self._vote(voters, out)
            if token < 0:
                break
            cell = cell_of(self._source, longest + len(out), len(voters), len(agreeing))
            chance *= rates[cell]
            if out and chance < _FLOOR:
                break
            out.append(token)
            survival.append(chance)
            cells.append(cell)
            voters = agreeing
        return out, survival, cells

    def _vote(self, voters: list[int], out: list[int]) -> tuple[int, list[int]]:
        """The token that most voters go on with after ``out`` (-1: none), and those voters."""
        tokens, size, ahead = self.corpus.tokens, len(self.corpus.tokens), len(out)
        if len(voters) == 1:
            place = voters[0] + ahead
            return (tokens[place] if place < size else self._beyond(place - size, out)), voters
        votes: dict[int, list[int]] = {}
        for voter in voters:
            place = voter + ahead
            token = tokens[place] if place < size else self._beyond(place - size, out)
            if token >= 0:
                votes.setdefault(token, []).append(voter)
        if not votes:
            return -1, voters
        token = max(votes, key=lambda each: len(votes[each]))
        return token, votes[token]

    def _beyond(self, place: int, out: list[int]) -> int:
        """A copy that reaches the text's own end goes on with what it has copied itself."""
        return out[place] if self._source == 0 and place < len(out) else -1


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

    def places(self, tail: Sequence[int], known: int) -> Iterable[tuple[int, int]]:
        if len(tail) > 1:
            pairs = self._pairs.get(tail[-2] << 32 | tail[-1], ())[-_RECENT_PAIRS:]
            for place in reversed(pairs):
                yield place, 2
            known += len(pairs)
        if known < _ENOUGH:
            for place in reversed(self._singles.get(tail[-1], ())[-_RECENT_SINGLES:]):
                yield place, 1
