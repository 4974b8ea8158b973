"""The tokens of a step, laid out as llama.cpp takes them: flat arrays, cut into pieces, one ``llama_batch`` each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.discipline import Slot


class Ragged:
    """Every token of a step in one row: those that the cache has lost first, then the new ones, by sequence.

    slots and new go together; ``rows`` says of how many of the last new tokens the logits are wanted.
    """

    def __init__(self, slots: Sequence[Slot], new: Sequence[NDArray[np.int32]], rows: Sequence[int]) -> None:
        lost = [np.array(slot.tokens[slot.stored :], np.int32) for slot in slots]
        lengths = [len(old) + len(fresh) for old, fresh in zip(lost, new, strict=True)]
        starts = [slot.stored for slot in slots]
        self.tokens = np.concatenate([part for pair in zip(lost, new, strict=True) for part in pair])
        self.positions = np.concatenate([np.arange(n) + start for n, start in zip(lengths, starts, strict=True)])
        self.ids = np.repeat([slot.id for slot in slots], lengths)
        self.wanted = np.concatenate([np.arange(n) >= n - count for n, count in zip(lengths, rows, strict=True)])
        self.row_of = np.concatenate([[0], np.cumsum(self.wanted)])  # rows of logits before a token

    @property
    def rows(self) -> int:
        return int(self.row_of[-1])

    def pieces(self, most_tokens: int, most_rows: int) -> Iterator[tuple[slice, slice]]:
        """Cuts: the tokens of a piece, and the rows of logits that it gives."""
        start = 0
        while start < len(self.tokens):
            fitting = int(np.searchsorted(self.row_of, self.row_of[start] + most_rows, side="right")) - 1
            stop = min(start + most_tokens, fitting)
            yield slice(start, stop), slice(int(self.row_of[start]), int(self.row_of[stop]))
            start = stop


class Batch:
    """A ``llama_batch`` over numpy arrays that are filled again for every decode."""

    def __init__(self, api: Any, capacity: int, sequences: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._one = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._ids = np.arange(sequences, dtype=np.int32)
        self._addresses = self._ids.ctypes.data + self._ids.itemsize * np.arange(sequences, dtype=np.uintp)
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

    def fill(self, step: Ragged, piece: slice) -> None:
        count = piece.stop - piece.start
        self._tokens[:count] = step.tokens[piece]
        self._positions[:count] = step.positions[piece]
        self._sequences[:count] = self._addresses[step.ids[piece]]
        self._wanted[:count] = step.wanted[piece]
        self.struct.n_tokens = count
