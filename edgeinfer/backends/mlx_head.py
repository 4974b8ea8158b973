"""What the MLX backend gives to a drafter that predicts with the model's own head: hidden states, and the head."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from edgeinfer import ops
from edgeinfer.backends.rows import on_host
from edgeinfer.cache.kv import LayerKV
from edgeinfer.nn.batch import Batch, View
from edgeinfer.nn.nextn import NextToken


class Trace:
    """Hidden states (…, hidden) behind the last block, of the tokens that a sequence kept."""

    def __init__(self) -> None:
        self.fresh: mx.array | None = None  # of the step that waits for its accept
        self.start = 0  # the position of the first one
        self.rows: list[mx.array] = []

    def keep(self, position: int, count: int) -> None:
        """The first ``count`` fresh ones stay; the sequence had ``position`` tokens before."""
        if self.fresh is None:
            return
        if not self.rows:
            self.start = position
        if count:
            self.rows.append(self.fresh[:count])
        self.fresh = None

    def take(self) -> tuple[int, mx.array] | None:
        """All of them, and the position of the first; they are forgotten here."""
        if not self.rows:
            return None
        rows = self.rows[0] if len(self.rows) == 1 else mx.concatenate(self.rows)
        self.rows = []
        return self.start, rows


class PredictionHead:
    """Runs the head for one sequence, whose memory of it is a layer of its own."""

    def __init__(self, head: NextToken, threads: int) -> None:
        self._head, self._threads = head, threads

    def step(self, memory: LayerKV, length: int, hidden: mx.array, tokens: Sequence[int], first: bool) -> mx.array:
        """hidden: (L, hidden) of the places before ``tokens`` -> (L, hidden) of these, which go behind the first
        ``length`` places of ``memory``. ``first``: the states are the model's, not this head's own."""
        batch = Batch(
            mx.array(np.asarray(tokens, np.int32)),
            [View(0, len(tokens), length, [memory] * (self._head.layer + 1), range(0))],
        )
        with ops.threads(self._threads):
            out = self._head(self._head.behind_norm(hidden) if first else hidden, batch)
        mx.async_eval(out, memory.arrays)  # type: ignore[no-untyped-call]
        return out

    def logits(self, hidden: mx.array) -> npt.NDArray[np.float32]:
        """(1, hidden), as ``step`` gives it -> (V,) of the token after the one that it was given."""
        with ops.threads(self._threads):
            return on_host(self._head.output(hidden)[0])
