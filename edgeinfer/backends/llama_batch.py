"""Tokens as llama.cpp takes them: a ``llama_batch`` over numpy arrays that are filled again for every decode."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeinfer.backends.discipline import Slot


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that follow each other in one sequence, and of how many of the last ones the logits are wanted."""

    id: int
    position: int
    tokens: array[int]
    rows: int


def runs(slots: Sequence[Slot], new: Sequence[array[int]], rows: Sequence[int]) -> Iterator[Run]:
    """For each sequence the tokens that the cache has lost, then the new ones."""
    for slot, fresh, count in zip(slots, new, rows, strict=True):
        lost = slot.tokens[slot.stored :]
        yield Run(slot.id, slot.stored, lost + fresh if lost else fresh, count)


class Batch:
    """At most ``capacity`` tokens and ``most_rows`` rows of logits."""

    def __init__(self, api: Any, capacity: int, most_rows: int, sequences: int) -> None:
        self.rows = 0
        self._capacity, self._most_rows = capacity, most_rows
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._one = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._ids = np.arange(sequences, dtype=np.int32)
        self._addresses = [self._ids[index:].ctypes.data for index in range(sequences)]
        self._sequences = np.zeros(capacity, np.uintp)  # for each token the address of its sequence id
        types = dict(api.llama_batch._fields_)
        self.struct = api.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(types["token"]),
            embd=None,
            pos=self._positions.ctypes.data_as(types["pos"]),
            n_seq_id=self._one.ctypes.data_as(types["n_seq_id"]),
            seq_id=self._sequences.ctypes.data_as(types["seq_id"]),
            logits=self._wanted.ctypes.data_as(types["logits"]),
        )

    def __len__(self) -> int:
        return int(self.struct.n_tokens)

    def clear(self) -> None:
        self.struct.n_tokens = self.rows = 0

    def add(self, run: Run, start: int) -> int:
        """Takes tokens of ``run`` from ``start`` on, as many as fit; returns how many."""
        filled, silent = len(self), max(0, len(run.tokens) - run.rows - start)  # no logits for the first ones
        count = min(len(run.tokens) - start, self._capacity - filled, silent + self._most_rows - self.rows)
        place, position = slice(filled, filled + count), run.position + start
        self._tokens[place] = run.tokens[start : start + count]
        self._positions[place] = range(position, position + count)
        self._sequences[place] = self._addresses[run.id]
        self._wanted[place] = 0
        self._wanted[filled + silent : filled + count] = 1
        self.rows += max(0, count - silent)
        self.struct.n_tokens = filled + count
        return count
