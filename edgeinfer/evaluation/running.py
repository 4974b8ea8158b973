"""Formats of keys and values as a running cache has them: first and latest tokens exact, policy and all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from edgeinfer import ops
from edgeinfer.backends.base import Backend, Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import EXACT
from edgeinfer.converted.opening import open_model
from edgeinfer.evaluation.lockstep import Side
from edgeinfer.evaluation.measures import divergences
from edgeinfer.evaluation.scores import Divergence
from edgeinfer.loading.loader import kv_policy
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline
from edgeinfer.ops.composed import ComposedHeads

_PIECE = 512


def running_costs(
    path: Path,
    formats: Sequence[str],
    windows: Sequence[Sequence[int]],
    first: int,
    threads: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Divergence]:
    """How far each format, or ``auto``, takes the model from exact, over rows ``first`` and later of each window.

    The weights are loaded once, in float32 on a CPU, and nothing but the cache is rounded. Raises what loading raises.
    """
    with ExitStack() as closing:
        with ops.built_plainly(ComposedHeads), open_model(path) as file:
            exact = MLXBackend.load(path, len(windows[0]), threads)
            closing.callback(exact.close)
            outline = build(file, Outline)
            others = [exact.in_format(kv_policy(file, outline, name)) for name in formats]
        for backend in others:
            closing.callback(backend.close)
        sides = [Side(name, backend) for name, backend in zip(formats, others, strict=True)]
        return divergences(Side(EXACT.name, exact), sides, windows, first, on_progress)


def allocated(backend: Backend, tokens: int) -> int:
    """Bytes that keys and values of a sequence of so many tokens really hold."""
    state = backend.open()
    for start in range(0, tokens, _PIECE):
        piece = [(7 * index + 1) % backend.info.vocab_size for index in range(start, min(tokens, start + _PIECE))]
        backend.step([Chunk(state, piece, "none")])
        state.accept(len(piece))
    held: int = state.nbytes
    state.close()
    return held
