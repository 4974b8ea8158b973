"""Logits changed by what was said before: bias, repetition penalties and DRY. They need the history, so the host.

The formulas are llama.cpp's: of its ``penalties`` and ``dry`` samplers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edgeinfer.types import SamplingParams

Logits: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]
Breakers: TypeAlias = Mapping[int, Sequence[tuple[int, ...]]]
"""Sequence breakers by their first token: the tokens that follow it, none for a token that holds the whole text."""

_LOG_FLOAT_MAX = 88.7228391
_LONGEST_TAIL = 20
_LARGEST_BIAS = 1e30  # a bias of +inf, made one that arithmetic survives


class Vocabulary(Protocol):
    """What is needed of a tokenizer to find breakers."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode(self, text: str, /) -> list[int]: ...


def bias_row(bias: Mapping[int, float], vocab_size: int) -> Logits:
    """A row to add to the logits, (V,)."""
    row = np.zeros(vocab_size, np.float32)
    for token, value in bias.items():
        row[token] = min(value, _LARGEST_BIAS)
    return row


def penalizes(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def penalize(logits: Logits, history: Ids, params: SamplingParams) -> None:
    """Repetition (Keskar et al. 2019), presence and frequency penalties, in place, over the last tokens."""
    tokens, counts = np.unique(history[-params.penalty_window :], return_counts=True)
    values = logits[tokens]
    scaled = np.where(values <= 0, values * params.repetition_penalty, values / params.repetition_penalty)
    logits[tokens] = scaled - counts * params.frequency_penalty - params.presence_penalty


def dry(logits: Logits, history: Ids, params: SamplingParams, breakers: Breakers) -> None:
    """Don't Repeat Yourself, in place: a token that would prolong a repetition of ``dry_allowed_length`` tokens or
    more loses ``multiplier * base ** (length - allowed)``."""
    window = history[-params.dry_window :]
    allowed = params.dry_allowed_length
    if len(window) <= allowed:
        return
    longest = _since_breaker(window, breakers)
    if longest < allowed:
        return
    excess = int(_LOG_FLOAT_MAX / math.log(params.dry_base)) if params.dry_base > 1.000001 else 0
    for token, length in _repeats(window, allowed, min(longest, allowed + excess)).items():
        if () not in breakers.get(token, ()):
            logits[token] -= params.dry_multiplier * params.dry_base ** (length - allowed)


def _repeats(window: Ids, allowed: int, longest: int) -> dict[int, int]:
    """Tokens that followed an earlier copy of the window's end, and how long that copy was, at most ``longest``."""
    places = np.arange(1, len(window))  # of the token after the copy
    found: dict[int, int] = {}
    for length in range(1, longest + 1):
        places = places[places >= length]
        places = places[window[places - length] == window[-length]]
        if not len(places):
            break
        if length >= allowed:
            found.update(dict.fromkeys(np.unique(window[places]).tolist(), length))
    return found


def _since_breaker(window: Ids, breakers: Breakers) -> int:
    """Tokens at the end of the window that come after its last breaker."""
    heads = np.flatnonzero(np.isin(window, list(breakers))) if breakers else np.empty(0, np.int64)
    for place in heads[::-1].tolist():
        following = tuple(window[place + 1 : place + 1 + _LONGEST_TAIL].tolist())
        tails = [tail for tail in breakers[int(window[place])] if following[: len(tail)] == tail]
        if tails:
            return len(window) - 1 - int(place) - max(map(len, tails))
    return len(window)


def find_breakers(vocabulary: Vocabulary, texts: Sequence[str]) -> Breakers:
    """Every token that holds one of ``texts``, or ends in the beginning of one, with the tokens that complete it.

    Reads the whole vocabulary: a third of a second for 262,144 tokens.
    """
    wanted = [text.encode() for text in texts]
    found: dict[int, set[tuple[int, ...]]] = {}
    for token in range(vocabulary.vocab_size):
        word = vocabulary.token_bytes(token)
        for text in wanted:
            if text in word:
                found.setdefault(token, set()).add(())
                continue
            for cut in range(1, len(text)):
                if word.endswith(text[:cut]):
                    rest = text[cut:].decode(errors="ignore")
                    found.setdefault(token, set()).add(tuple(vocabulary.encode(rest)[:_LONGEST_TAIL]))
    return {token: sorted(tails) for token, tails in found.items()}
