"""A model's forward pass: as one operation where everything in it is native, else operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.state import StateShape
from edgeinfer.nn.batch import Batch


class Model(Protocol):
    kv_shapes: Sequence[KVShape | StateShape]

    def __call__(self, batch: Batch) -> mx.array: ...


class Forward:
    """Runs a model. ``recorded``: it was called once, on values that hold nothing, and is replayed ever after,
    but for steps whose hidden states somebody wants."""

    def __init__(self, model: Model, recorded: bool = True) -> None:
        self._model = model
        self._program: Any = _record(model) if recorded else None

    @property
    def recorded(self) -> bool:
        return self._program is not None

    def __call__(self, batch: Batch) -> mx.array:
        """Logits of the wanted rows, (R, V) float32, on their way; every chunk's caches will hold its rows."""
        if self._program is not None and batch.trace is None:
            return self._replay(batch)
        logits = self._model(batch)
        mx.async_eval(logits, [layer.arrays for view in batch.views for layer in view.layers])  # type: ignore[no-untyped-call]
        return logits

    def _replay(self, batch: Batch) -> mx.array:
        caches = [[layer.arrays[0] if layer.arrays else None for layer in view.layers] for view in batch.views]
        owned = [not any(layer.shared for layer in view.layers) for view in batch.views]
        logits: mx.array
        frames = [view.frames for view in batch.views] if batch.places else []
        places = [place.native for place in batch.places if place is not None]
        logits, made = self._program(batch.tokens, batch.spans, caches, owned, batch.wanted_rows, frames, places)
        for view, arrays in zip(batch.views, made, strict=True):
            if arrays:
                for layer, array in zip(view.layers, arrays, strict=True):
                    layer.arrays, layer.shared = (array,), False
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        return logits


class _Recording(Batch):
    """A batch of no chunk: what is done with its tokens is remembered."""

    def wanted(self, x: Any) -> Any:
        return x.wanted()


def _record(model: Model) -> Any:
    """The model's operations as one; None where one of them cannot be recorded."""
    recorder = ops.recorder()
    if recorder is None:
        return None
    try:
        program = recorder.finish(model(_Recording(recorder, [])))
    except (AttributeError, TypeError, ValueError):  # what MLX raises for anything but an array
        return None
    return program if program.layers == len(model.kv_shapes) else None
