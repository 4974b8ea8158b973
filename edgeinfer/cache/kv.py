"""The keys and values of one layer of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer import ops

BLOCK = 256
"""Tokens in whose multiples caches are cut."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a layer remembers of a token: ``kv_heads`` keys and values of ``head_dim`` numbers each.

    ``window``: tokens that the layer sees, 0 for all; ``learned_sinks``: its softmax has a weight of its own to lose;
    ``latent``: there are only keys, and the values are a part of them; ``whole``: the cache is read in ways that know
    no other form of it.
    """

    kv_heads: int
    head_dim: int
    window: int = 0
    learned_sinks: bool = False
    latent: bool = False
    whole: bool = False

    @property
    def compressible(self) -> bool:
        """Layers that see a window are small, and those with learned sinks, or whose keys are values, lose too much."""
        return not (self.window or self.learned_sinks or self.latent or self.whole)

    @property
    def movable(self) -> bool:
        """Whether what has left the window may be let go."""
        return not (self.learned_sinks or self.latent or self.whole)

    def bytes_per_sequence(self) -> int:
        """Beside those of its tokens."""
        return 0

    def empty(self) -> LayerKV:
        return LayerKV()

    def bytes_per_token(self) -> int:
        rows = (1 if self.latent else 2) * self.kv_heads
        return rows * self.head_dim * ops.kv_dtype(self.head_dim, composed=self.latent).size


class LayerKV:
    """What the layer's operation keeps of a sequence; rows past the sequence's length hold nothing.

    ``shared``: another sequence may read the arrays, so that who writes in place has to make new ones first.
    """

    __slots__ = ("arrays", "shared")
    cuttable = True

    def __init__(self, arrays: ops.Cache = (), shared: bool = False) -> None:
        self.arrays = arrays
        self.shared = shared

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def keep(self, count: int, size: int) -> None:
        """Rows past the first ``count`` of the last ``size`` are written over."""

    def share(self, length: int) -> LayerKV:
        """The first ``length`` rows, and no more of them than whole blocks, for another sequence."""
        self.shared = True
        rows = -(-length // BLOCK) * BLOCK
        if all(rows >= array.shape[-2] for array in self.arrays):
            return LayerKV(self.arrays, shared=True)
        return LayerKV(tuple(array[..., :rows, :] for array in self.arrays), shared=True)
