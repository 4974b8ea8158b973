"""Recurrences over tokens, in the names that numpy and ``mlx.core`` share: ``xp`` is one of the two.

Within a block of tokens they are products of matrices; from block to block a state is handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

Array: TypeAlias = Any

BLOCK = 64


def run(function: Callable[..., tuple[Array, Array]], on_host: bool, *arrays: mx.array) -> tuple[mx.array, mx.array]:
    """``function`` of the arrays, in numpy on their own memory or in MLX."""
    if not on_host:
        return function(mx, *arrays)
    mx.eval(*arrays)
    out, state = function(np, *(np.asarray(each) for each in arrays))
    return mx.array(np.ascontiguousarray(out)), mx.array(np.ascontiguousarray(state))


def causal_conv(xp: Any, x: Array, window: Array, kernel: Array) -> tuple[Array, Array]:
    full = xp.concatenate([window, x], axis=0)
    taps = [full[at : at + len(x)] * kernel[:, at] for at in range(kernel.shape[1])]
    return sum(taps[1:], taps[0]), full[len(x) :]


def selective_scan(
    xp: Any, x: Array, step: Array, decay: Array, keys: Array, queries: Array, state: Array
) -> tuple[Array, Array]:
    shared = x.shape[1] // keys.shape[1]
    out = []
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        total, kept, left = _decays(xp, decay[part])
        k, q = (xp.repeat(each[part], shared, axis=1).swapaxes(0, 1) for each in (keys, queries))  # H b N
        v = (x[part] * step[part][..., None]).swapaxes(0, 1)  # H b P
        before = xp.exp(total)[..., None] * (q @ state.swapaxes(1, 2))
        out.append(((q @ k.swapaxes(1, 2) * kept) @ v + before).swapaxes(0, 1))
        state = xp.exp(total[:, -1])[:, None, None] * state + (v * left).swapaxes(1, 2) @ k
    return xp.concatenate(out, axis=0), state


def gated_delta(xp: Any, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    out = []
    for start in range(0, len(q), BLOCK):
        part = slice(start, start + BLOCK)
        total, kept, left = _decays(xp, decay[part])
        queries, keys, values = (each[part].swapaxes(0, 1) for each in (q, k, v))  # H b D
        rate = beta[part].swapaxes(0, 1)[..., None]
        rows = xp.arange(total.shape[1])
        earlier = xp.where(rows[:, None] > rows, kept, 0.0)
        met = rate * (keys @ keys.swapaxes(1, 2)) * earlier  # what each token finds of those before it in the block
        known = xp.exp(total)[..., None]
        wanted = rate * (values - known * (keys @ state))
        written = _solve(xp, met + xp.eye(total.shape[1], dtype=xp.float32), wanted)
        found = known * (queries @ state) + (queries @ keys.swapaxes(1, 2) * kept) @ written
        out.append(found.swapaxes(0, 1))
        state = xp.exp(total[:, -1])[:, None, None] * state + (keys * left).swapaxes(1, 2) @ written
    return xp.concatenate(out, axis=0), state


def _decays(xp: Any, decay: Array) -> tuple[Array, Array, Array]:
    """Of logarithms (b, H): their sums (H, b), what is left of j at i (H, b, b), and at the end (H, b, 1)."""
    total = xp.cumsum(decay, axis=0).swapaxes(0, 1)
    rows = xp.arange(total.shape[1])
    kept = xp.exp(xp.where(rows[:, None] >= rows, total[:, :, None] - total[:, None, :], -xp.inf))
    return total, kept, xp.exp(total[:, -1:] - total)[..., None]


def _solve(xp: Any, lower: Array, wanted: Array) -> Array:
    """lower @ result = wanted, for unit lower triangles."""
    if xp is np:
        return np.linalg.solve(lower, wanted)
    return mx.linalg.solve_triangular(lower, wanted, upper=False, stream=mx.cpu)
