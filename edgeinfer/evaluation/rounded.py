"""Every key and value rounded to a format the moment it is made: what the format itself costs, with nothing exact.

A running cache keeps its first and its latest tokens as they are, so that a short text shows no loss at all. Here a
token's own key is rounded before the token looks at it, on every layer, as llama.cpp's quantized cache does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import psutil

from edgeinfer import ops
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.codecs.base import Floats, KVCodec
from edgeinfer.cache.formats import KVFormat
from edgeinfer.evaluation.lockstep import Side
from edgeinfer.ops import workers
from edgeinfer.ops.composed import ComposedHeads
from edgeinfer.ops.implementation import Implementation
from edgeinfer.ops.parts import HeadsParts, LinearMap


class Rounding:
    """The format that all heads of one model round to now."""

    def __init__(self, form: KVFormat) -> None:
        self.form = form

    def keys(self, rows: Floats) -> Floats:
        return _there_and_back(self.form.keys, rows)

    def values(self, rows: Floats) -> Floats:
        return _there_and_back(self.form.values, rows)

    @contextmanager
    def using(self, form: KVFormat) -> Iterator[None]:
        before, self.form = self.form, form
        yield
        self.form = before


@dataclass(frozen=True, slots=True)
class RoundedHeads(ComposedHeads):
    rounding: Rounding

    def _kept(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        kept = []
        for array, rounded in ((keys, self.rounding.keys), (values, self.rounding.values)):
            rows = np.asarray(array, np.float32)
            kept.append(mx.array(rounded(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)))
        return kept[0], kept[1]


class RoundedModel:
    """An MLX backend whose keys and values can be rounded to any format. Close it, or its ``backend``."""

    def __init__(self, path: Path, form: KVFormat, context: int = 0, threads: int = 0) -> None:
        self._rounding = Rounding(form)
        self._threads = threads or psutil.cpu_count(logical=False) or 1
        with ops.built_plainly(self._heads):
            self.backend = MLXBackend.load(path, context, threads)

    def side(self, form: KVFormat) -> Side:
        """Computing with the keys and values of a format."""
        return Side(form.name, self.backend, lambda: self._rounding_to(form))

    @contextmanager
    def _rounding_to(self, form: KVFormat) -> Iterator[None]:
        with workers.threads(self._threads), self._rounding.using(form):
            yield

    def _heads(self, parts: HeadsParts, output: LinearMap | None, here: Implementation) -> RoundedHeads:
        return RoundedHeads(parts, output, here, self._rounding)


def _there_and_back(codec: KVCodec | None, rows: Floats) -> Floats:
    if codec is None:
        return rows.astype(np.float16).astype(np.float32)
    return codec.decode(codec.encode(rows), rows.shape[1])
