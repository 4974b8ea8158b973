"""What a recurrent layer remembers of a sequence: a state of fixed size, and how to take tokens back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import mlx.core as mx

Arrays: TypeAlias = tuple[mx.array, ...]
Run: TypeAlias = Callable[[Arrays, Arrays], tuple[mx.array, Arrays]]
"""Arrays of a state and inputs of L tokens (L, …) -> outputs (L, …) and the arrays behind them."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """float32 arrays of these shapes, however long the sequence; zeros before its first token."""

    shapes: tuple[tuple[int, ...], ...]
    head_dim: ClassVar[int] = 0
    window: ClassVar[int] = 0
    learned_sinks: ClassVar[bool] = False
    latent: ClassVar[bool] = False
    compressible: ClassVar[bool] = False

    def bytes_per_token(self) -> int:
        return 0

    def bytes_per_sequence(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.shapes)

    def empty(self) -> LayerState:
        return LayerState(tuple(mx.zeros(shape) for shape in self.shapes))


class LayerState:
    """A state, and until the next ``keep`` the inputs of the last chunk with the state before it.

    Inputs are small beside what made them: taking tokens back runs the recurrence over those that stay.
    """

    __slots__ = ("_chunk", "arrays", "shared")
    cuttable = False

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.shared = False
        self._chunk: tuple[Run, Arrays, Arrays] | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def advance(self, run: Run, inputs: Arrays) -> mx.array:
        """The outputs of a chunk; the state is then the one behind it."""
        out, after = run(self.arrays, inputs)
        self._chunk, self.arrays = (run, self.arrays, inputs), after
        return out

    def keep(self, count: int, size: int) -> None:
        """Of the ``size`` tokens of the last chunk, only the first ``count`` have been."""
        if self._chunk is not None and count < size:
            run, before, inputs = self._chunk
            self.arrays = run(before, tuple(each[:count] for each in inputs))[1] if count else before
        self._chunk = None

    def share(self, length: int) -> LayerState:
        """The same state for another sequence of just as many tokens. Arrays are values: nobody writes into them."""
        return LayerState(self.arrays)
