"""Whether a model still finds a sentence that stood far back: needles by depth and length.

A needle is a sentence with a number in it, put among sentences that have nothing to do with it; the model then reads
the sentence's beginning once more and has to continue with the number. It is found when each of the number's tokens is
the likeliest one. No chat template is needed, so that base models can be asked too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeinfer.backends.base import Backend, Chunk
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.texts import own_texts
from edgeinfer.tokenizer.vocabulary import Tokenizer

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_NEEDLES = 8
_THINGS = ("blue door", "old bridge", "green lamp", "north gate", "silver box", "long table", "red boat", "tall clock")
_PIECE = 512
_ROOM = 64  # tokens for the needles and the question


@dataclass(frozen=True, slots=True)
class Needle:
    thing: str
    number: int

    @property
    def beginning(self) -> str:
        return f" The number of the {self.thing} is"

    @property
    def sentence(self) -> str:
        return f"{self.beginning} {self.number}."


@dataclass(frozen=True, slots=True)
class Cell:
    """The share of the needles that were found in ``length`` tokens, the last of them ``depth`` (0 to 1) along."""

    length: int
    depth: float
    found: float


@dataclass(frozen=True, slots=True)
class Haystack:
    """Token ids: a beginning, and sentences that are put behind it in an order of the seed's."""

    start: list[int]
    sentences: list[list[int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer, seed: int) -> Haystack:
        prose, facts = own_texts()[:2]
        lines = " ".join((prose + facts).split()).replace("? ", "?. ").split(". ")
        sentences = [tokenizer.encode(f" {line.rstrip('.')}.") for line in lines if "?" not in line]
        random.Random(seed).shuffle(sentences)
        start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        return cls(start, sentences)

    def filled(self, length: int) -> list[list[int]]:
        """As many sentences as take up to ``length`` tokens, from the first one again when they run out."""
        taken: list[list[int]] = []
        room = length - len(self.start)
        while room >= len(sentence := self.sentences[len(taken) % len(self.sentences)]):
            taken.append(sentence)
            room -= len(sentence)
        return taken


def find_needles(
    backend: Backend,
    tokenizer: Tokenizer,
    lengths: Sequence[int],
    depths: Sequence[float] = DEPTHS,
    needles: int = 1,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """A cell for each length and depth, in this order. With several needles, the others lie evenly before the last.

    Raises BadRequest for a length that the context does not hold, and what the backend raises.
    """
    if not 1 <= needles <= MOST_NEEDLES:
        raise BadRequest(f"needles={needles}: expected 1 to {MOST_NEEDLES}", "needles")
    context = backend.info.context
    least = _ROOM * (1 + needles)
    if bad := next((length for length in lengths if not least <= length <= context), None):
        raise BadRequest(f"length={bad}: expected {least} tokens to the context of {context}", "lengths")
    numbers = random.Random(seed)
    haystack, total = Haystack.of(tokenizer, seed), sum(lengths) * len(depths)
    cells, done = [], 0
    for length in lengths:
        for depth in depths:
            hidden = [Needle(thing, numbers.randrange(1000, 10_000)) for thing in _THINGS[:needles]]
            tokens = _hide(haystack, tokenizer, hidden, length, depth)
            found = _ask(backend, tokens, [_question(tokenizer, needle) for needle in hidden])
            cells.append(Cell(length, depth, found / needles))
            done += length
            on_progress(done, total)
    return cells


def _hide(haystack: Haystack, tokenizer: Tokenizer, needles: Sequence[Needle], length: int, depth: float) -> list[int]:
    """A text of at most ``length`` tokens, the question's among them, with the needles in their places."""
    sentences = haystack.filled(length - _ROOM * (1 + len(needles)) // 2)
    for index, needle in reversed(list(enumerate(needles, 1))):
        place = round(depth * index / len(needles) * len(sentences))
        sentences.insert(place, tokenizer.encode(needle.sentence))
    return [*haystack.start, *(token for sentence in sentences for token in sentence)]


def _question(tokenizer: Tokenizer, needle: Needle) -> tuple[list[int], list[int]]:
    """The tokens of a needle up to its number, and those of the number."""
    before = tokenizer.encode(needle.beginning)
    whole = tokenizer.encode(needle.sentence.rstrip("."))
    shared = next((i for i, pair in enumerate(zip(before, whole, strict=False)) if pair[0] != pair[1]), len(before))
    return whole[:shared], whole[shared:]


def _ask(backend: Backend, tokens: Sequence[int], questions: Sequence[tuple[list[int], list[int]]]) -> int:
    """How many questions are answered after ``tokens``, which are computed once."""
    state = backend.open(tokens)
    forks: list[Any] = []
    try:
        while state.length < len(tokens):
            piece = tokens[state.length : state.length + _PIECE]
            backend.step([Chunk(state, piece, "none")])
            state.accept(len(piece))
        forks = [state.fork() for _ in questions]
        chunks = [
            Chunk(fork, [*asked, *answer[:-1]], "all") for fork, (asked, answer) in zip(forks, questions, strict=True)
        ]
        logits = backend.step(chunks)
        best = [
            np.asarray(each, np.float32)[-len(answer) :].argmax(axis=1)
            for each, (_, answer) in zip(logits, questions, strict=True)
        ]
        for fork, chunk in zip(forks, chunks, strict=True):
            fork.accept(len(chunk.tokens))
    finally:
        for each in (*forks, state):
            each.close()
    return sum(found.tolist() == answer for found, (_, answer) in zip(best, questions, strict=True))
