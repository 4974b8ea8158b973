"""A small tokenizer of chosen pieces, an outlet that keeps its events, and a tape that plays on the device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.types import Event, Finished, ReasoningDelta, TextDelta

END = 0
LETTERS = [b"<end>", *(bytes([code]) for code in range(ord(" "), ord("~") + 1)), b"\n"]


class FakeTokenizer:
    """Token i is ``pieces[i]``; the first one ends an answer. Text is encoded by the longest piece that fits."""

    space_prefix = False

    def __init__(self, pieces: Sequence[bytes] = LETTERS) -> None:
        self.pieces = list(pieces)
        self.vocab_size = len(self.pieces)
        self.end_ids = frozenset({END})

    def piece(self, index: int, special: bool = True) -> bytes:
        return self.pieces[index]

    token_bytes = piece

    def token_text(self, index: int) -> str:
        return self.pieces[index].decode(errors="replace")

    def encode(self, text: str, special: bool = False) -> list[int]:
        data, ids = text.encode(), []
        while data:
            best = max(
                (index for index, piece in enumerate(self.pieces) if piece and data.startswith(piece)),
                key=lambda index: len(self.pieces[index]),
            )
            ids.append(best)
            data = data[len(self.pieces[best]) :]
        return ids

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        return b"".join(self.pieces[index] for index in ids).decode(errors="replace")


class Kept:
    """An outlet that keeps everything."""

    def __init__(self, ready: bool = True) -> None:
        self.submitted = time.perf_counter()
        self.cancelled = False
        self.ready = ready
        self.events: list[Event] = []
        self.error: BaseException | None = None

    def put(self, event: Event) -> None:
        self.events.append(event)

    def fail(self, error: BaseException) -> None:
        self.error = error

    @property
    def text(self) -> str:
        return text_of(self.events)

    @property
    def ids(self) -> list[int]:
        return ids_of(self.events)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished)
        assert not any(isinstance(event, Finished) for event in self.events[:-1])
        return self.events[-1]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thoughts_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if not isinstance(event, Finished) for token in event.ids]


class DeviceTape(TapeBackend):
    """A tape whose logits and tokens are mlx arrays, so that decoding on it is pipelined."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.info = replace(self.info, lazy=True)
        self.fed_unread = 0

    def step(self, chunks: Sequence[Chunk]) -> list[Any]:
        self.fed_unread += sum(isinstance(chunk.tokens, mx.array) for chunk in chunks)
        read = [Chunk(chunk.state, np.array(chunk.tokens), chunk.rows) for chunk in chunks]
        return [mx.array(rows) for rows in super().step(read)]


def kept_sequences(backend: TapeBackend) -> list[list[int]]:
    """The tokens of every closed sequence, oldest first."""
    assert not backend._open
    return [list(slot.tokens) for slot in backend._kept.values()]
