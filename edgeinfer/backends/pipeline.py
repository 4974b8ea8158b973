"""One model over several processes, as ``mlx.launch`` starts them: each computes some of the layers.

The first process has the backend that everything above uses. It tells the others of every call before it does its own
share, so that all hold the same sequences; hidden states go from process to process, logits from the last to the
first. Nothing is reused from closed sequences: what one process has dropped for memory, another might still have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from edgeinfer.backends.base import Chunk, Rows
from edgeinfer.backends.mlx import MLXBackend, MLXSequence
from edgeinfer.cache.formats import EXACT, policy
from edgeinfer.cache.layout import Layout
from edgeinfer.errors import BackendUnavailable, EngineCrashed
from edgeinfer.loading.loader import load
from edgeinfer.loading.stage import Stage, StagedForward

_OPEN, _STEP, _ACCEPT, _FORK, _CLOSE, _END = range(6)
_ROWS: tuple[Rows, ...] = ("none", "last", "all")
_ORDER = 3  # numbers of an order: what, for which sequence, and one more


class Ring:
    """MLX's processes, one after the other in a ring."""

    def __init__(self, group: mx.distributed.Group) -> None:
        self._group = group
        self.stage = Stage(group.rank(), group.size())

    @classmethod
    def joined(cls) -> Ring:
        """The ring that ``mlx.launch`` started this process for. Raises BackendUnavailable where there is none."""
        try:
            group = mx.distributed.init(strict=True)
        except RuntimeError as error:
            raise BackendUnavailable(
                f"this process was not started for several ({error}); start it so: "
                "mlx.launch -n 2 --backend ring -- python -m edgeinfer run --distributed …",
                "mlx.launch",
            ) from None
        return cls(group)

    def send(self, array: mx.array, to: int) -> None:
        try:
            mx.eval(mx.distributed.send(array, to, group=self._group))
        except RuntimeError as error:
            raise EngineCrashed(f"process {to} of {self.stage.size} cannot be reached: {error}") from None

    def receive(self, shape: tuple[int, ...], dtype: mx.Dtype, sender: int) -> mx.array:
        try:
            array = mx.distributed.recv(shape, dtype, sender, group=self._group)
            mx.eval(array)
        except RuntimeError as error:
            raise EngineCrashed(f"process {sender} of {self.stage.size} cannot be reached: {error}") from None
        return array

    def tell(self, numbers: Sequence[int]) -> None:
        """To the next process, which tells it to the one after; a ring's processes reach their neighbours alone."""
        if not self.stage.last:
            self.send(mx.array(np.array(numbers, np.int32)), self.stage.rank + 1)

    def hear(self, count: int) -> list[int]:
        """What ``tell`` told the process before this one; told on."""
        numbers: Any = self.receive((count,), mx.int32, self.stage.rank - 1).tolist()
        self.tell(numbers)
        return list(numbers)


def load_share(path: Path, ring: Ring, context: int, threads: int) -> MLXBackend:
    """This process's layers, as a backend."""
    loaded = load(path, context, ring.stage)
    model: Any = loaded.model
    forward = StagedForward(model, ring.stage, ring, loaded.hidden, loaded.vocab_size)
    kv = policy(EXACT.name, model.kv_shapes, loaded.parameters)
    loaded = replace(loaded, kv=kv, layout=Layout.of(kv, model.kv_shapes))
    return MLXBackend(loaded, threads, forward)


class PipelineBackend:
    """The backend of the first process."""

    def __init__(self, path: Path, context: int = 0, threads: int = 0, ring: Ring | None = None) -> None:
        self._ring = ring or Ring.joined()
        self._own = load_share(path, self._ring, context, threads)
        size = self._ring.stage.size
        self.info = replace(
            self._own.info,
            lazy=False,
            device=f"{self._own.info.device} × {size}",
            weight_bytes=self._own.info.weight_bytes,
        )
        self._numbers = 0
        self._closed = False

    def open(self, tokens: Sequence[int] = ()) -> PipelineSequence:
        """An empty sequence."""
        self.tell(_OPEN)
        return self.numbered(self._own.open())

    def numbered(self, own: MLXSequence) -> PipelineSequence:
        self._numbers += 1
        return PipelineSequence(self, self._numbers - 1, own)

    def step(self, chunks: Sequence[Chunk]) -> list[Any]:
        own = [Chunk(chunk.state.own, list(chunk.tokens), chunk.rows) for chunk in chunks]
        self._own.check(own)  # before the others hear of it
        heads = [(chunk.state.number, len(chunk.tokens), _ROWS.index(chunk.rows)) for chunk in chunks]
        tokens = [token for chunk in own for token in chunk.tokens]
        self.tell(_STEP, len(chunks), len(tokens))
        self._ring.tell([number for head in heads for number in head] + tokens)
        return list(self._own.step(own))

    def tell(self, *order: int) -> None:
        if not self._closed:
            self._ring.tell([*order, *[0] * (_ORDER - len(order))])

    def forget(self) -> None:
        self._own.forget()

    def close(self) -> None:
        """Ends the other processes' work as well."""
        if not self._closed:
            self.tell(_END)
            self._closed = True
            self._own.close()


class PipelineSequence:
    """A sequence that every process holds a part of."""

    def __init__(self, owner: PipelineBackend, number: int, own: MLXSequence) -> None:
        self._owner = owner
        self.number = number
        self.own = own

    @property
    def length(self) -> int:
        return self.own.length

    @property
    def nbytes(self) -> int:
        """This process's part of it."""
        return self.own.nbytes

    def accept(self, count: int) -> None:
        self.own.accept(count)  # which refuses what must not be
        self._owner.tell(_ACCEPT, self.number, count)

    def fork(self) -> PipelineSequence:
        own = self.own.fork()
        self._owner.tell(_FORK, self.number)
        return self._owner.numbered(own)

    def close(self) -> None:
        if not self.own.closed:
            self.own.close()
            self._owner.tell(_CLOSE, self.number)


def follow(path: Path, context: int = 0, threads: int = 0, ring: Ring | None = None) -> None:
    """What every process but the first does: its share of each step, until the first one closes."""
    ring = ring or Ring.joined()
    backend = load_share(path, ring, context, threads)
    sequences: dict[int, MLXSequence] = {}
    made = 0
    while True:
        what, number, count = ring.hear(_ORDER)
        if what == _END:
            backend.close()
            return
        if what == _STEP:
            _step(backend, sequences, ring, number, count)
        elif what == _ACCEPT:
            sequences[number].accept(count)
        elif what == _CLOSE:
            sequences.pop(number).close()
        else:
            sequences[made] = backend.open() if what == _OPEN else sequences[number].fork()
            made += 1


def _step(backend: MLXBackend, sequences: dict[int, MLXSequence], ring: Ring, chunks: int, tokens: int) -> None:
    numbers = ring.hear(3 * chunks + tokens)
    heads, rest = numbers[: 3 * chunks], numbers[3 * chunks :]
    asked = []
    for place in range(0, len(heads), 3):
        number, length, rows = heads[place : place + 3]
        asked.append(Chunk(sequences[number], rest[:length], _ROWS[rows]))
        rest = rest[length:]
    backend.step(asked)
