"""A model over several processes: each has some of the layers, and hands hidden states to the next.

Every process builds the whole model, but reads only the weights of its own layers, of the embedding, and, the last
one, of the head. Architectures know nothing of it: what stands before and behind their blocks is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.formats.gguf import TensorInfo
from edgeinfer.loading.fit import Needs
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.tensors import Outline, Tensors

_EMBEDDING = "token_embd."
_BLOCKS = "blk."
_DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True, slots=True)
class Stage:
    """The share of process ``rank`` of ``size``."""

    rank: int
    size: int

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1

    def layers(self, count: int) -> range:
        """Which of ``count`` layers it has: as many as the others, or one more."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def share(self, needs: Needs) -> Needs:
        """About what the share takes, of what the whole model needs."""
        return replace(
            needs,
            weights=needs.weights // self.size,
            kv_per_token=-(-needs.kv_per_token // self.size),
            per_sequence=-(-needs.per_sequence // self.size),
        )

    def tensors(self, layers: int) -> type[Tensors]:
        """Reads what this process multiplies with; of the rest only the header."""
        kept = self.layers(layers)

        class Share(Tensors):
            def _read_matrix(self, info: TensorInfo, part: slice = slice(None)) -> ops.Weight:
                return super()._read_matrix(info, part) if here(info.name) else _outline(self)._read_matrix(info, part)

            def _read_experts(self, info: TensorInfo) -> ops.ExpertWeight:
                return super()._read_experts(info) if here(info.name) else _outline(self)._read_experts(info)

        def here(name: str) -> bool:
            if name.startswith(_BLOCKS):
                return int(name.split(".")[1]) in kept
            return name.startswith(_EMBEDDING) or self.last

        return Share


def _outline(tensors: Tensors) -> Outline:
    return Outline(tensors.file, tensors.prefix, tensors.asked, tensors.wide)


class Wire(Protocol):
    """Arrays between neighbours, in the order in which they are sent."""

    def send(self, array: mx.array, to: int) -> None: ...
    def receive(self, shape: tuple[int, ...], dtype: mx.Dtype, sender: int) -> mx.array: ...


class StagedForward:
    """The forward pass of one share. On the first process it gives the logits, (R, V) float32; on the others, which
    nobody asks, zeros of as many rows."""

    recorded = False

    def __init__(self, model: Any, stage: Stage, wire: Wire, hidden: int, vocabulary: int) -> None:
        self._model = model
        self._stage = stage
        self._wire = wire
        self._hidden = hidden
        self._vocabulary = vocabulary
        layers = stage.layers(len(model.blocks))
        self._first_layer = layers.start
        blocks = list(model.blocks[layers.start : layers.stop])
        model.blocks = [*([] if stage.first else [self._receive]), *blocks, *([] if stage.last else [self._hand_on])]
        model.kv_shapes = model.kv_shapes[layers.start : layers.stop]

    def __call__(self, batch: Batch) -> mx.array:
        views = [replace(view, layers=_Shifted(view.layers, self._first_layer)) for view in batch.views]
        rows = len(batch.wanted_rows)
        logits = None
        try:
            logits = self._model(replace(batch, views=views))
            mx.eval(logits)
        except _HandedOn:
            pass
        if self._stage.last and not self._stage.first and rows:
            assert logits is not None
            self._wire.send(logits.astype(mx.float32), 0)
        if self._stage.first and not self._stage.last:
            shape = (rows, self._vocabulary)
            return self._wire.receive(shape, mx.float32, self._stage.size - 1) if rows else mx.zeros(shape)
        return logits if logits is not None else mx.zeros((rows, 1))

    def _receive(self, x: mx.array, batch: Batch) -> mx.array:
        before = self._stage.rank - 1
        kind: Any = self._wire.receive((1,), mx.int32, before).item()
        return self._wire.receive(x.shape, mx.float32, before).astype(_DTYPES[kind])

    def _hand_on(self, x: mx.array, batch: Batch) -> mx.array:
        after = self._stage.rank + 1
        self._wire.send(mx.array([_DTYPES.index(x.dtype)], mx.int32), after)
        self._wire.send(x.astype(mx.float32), after)
        raise _HandedOn


class _HandedOn(Exception):
    """The next process has the hidden states: what stands behind the blocks is its affair."""


class _Shifted(Sequence[Any]):
    """The layers of a share, under their numbers in the whole model."""

    def __init__(self, layers: Sequence[Any], first: int) -> None:
        self._layers = layers
        self._first = first

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            raise TypeError("a share's layers are asked for one by one")
        return self._layers[index - self._first]

    def __len__(self) -> int:
        return self._first + len(self._layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._layers)
