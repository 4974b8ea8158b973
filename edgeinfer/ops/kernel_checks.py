"""Every Metal kernel against its twin on this machine's GPU: what ``edgeinfer doctor --kernels`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgeinfer.metal_kernels import attention, products
from edgeinfer.ops import plain
from edgeinfer.ops.adopt import PAGE, Tally, adopt, tally
from edgeinfer.ops.weights import PackedExperts, PackedWeight
from edgeinfer.quant.codec import CODECS, Codec, decode

ROWS = (1, 8, 16, 64)
BOUND, ATTENTION_BOUND = 1e-6, 1e-3
"""Largest error that passes, over the largest value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``error`` is over the largest value; ``speed`` is MLX's own time over ours."""

    kernel: str
    error: float
    bound: float
    speed: float = 0.0
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure and self.error <= self.bound

    def __str__(self) -> str:
        if self.failure:
            return f"FAILED: {self.failure}"
        verdict = "passed" if self.passed else "FAILED"
        return f"{verdict}, error {self.error:.1e} (bound {self.bound:.0e}), {self.speed:.2f} times MLX's own speed"


def check(outputs: int, columns: int, repeats: int) -> Iterator[Verdict]:
    """Products of every codec, rows of every codec, attention of every head size; timed over ``repeats`` calls."""
    for codec in (each for each in CODECS.values() if each.decodable):
        yield from _products(codec, outputs, columns, repeats)
    for head_dim in attention.HEAD_DIMS:
        for rows in (1, attention.MOST_ROWS, 4 * attention.MOST_ROWS):
            yield _attention(head_dim, rows, repeats)


def loading() -> str:
    """Whether weights of a file are used in place here: tried with two pages of memory."""
    before = Tally(tally.shared, tally.copied, tally.reason)
    memory = mmap(-1, 2 * PAGE)
    mx.eval(adopt(np.frombuffer(memory, np.uint8).reshape(2, PAGE)))
    copied = tally.copied > before.copied
    reason = tally.reason
    tally.shared, tally.copied, tally.reason = before.shared, before.copied, before.reason
    return f"copies the weights: {reason}" if copied else "uses the weights where they lie in the file"


def random_blocks(codec: Codec, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """(rows, bytes per row) of blocks whose weights are finite and of ordinary size."""
    random = np.random.default_rng(seed)
    blocks = np.zeros((rows * columns // codec.weights, codec.bytes), np.uint8)
    wanted = np.arange(len(blocks))
    while len(wanted):
        blocks[wanted] = random.integers(0, 256, (len(wanted), codec.bytes), dtype=np.uint8)
        largest = np.abs(decode(codec, blocks[wanted])).max(axis=1)
        wanted = wanted[~((largest > 1e-3) & (largest < 10))]
    return blocks.reshape(rows, -1)


def _products(codec: Codec, outputs: int, columns: int, repeats: int) -> Iterator[Verdict]:
    blocks = random_blocks(codec, outputs, columns, codec.ggml_id)
    w, weights = mx.array(blocks), decode(codec, blocks)
    packed = PackedWeight(codec, blocks, (outputs, columns))
    twin, experts = plain.prepare(packed, wide=False), plain.prepare_experts(PackedExperts(1, packed), wide=False)
    for rows in ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        array = mx.array(x)
        yield verdict(
            f"{'qmv' if rows <= ROWS[2] else 'qmm'}, {codec.name}, {rows} rows",
            partial(products.multiply, array, w, codec),
            partial(twin.linear, array),
            x.astype(np.float64) @ weights.T.astype(np.float64),
            BOUND,
            repeats,
        )
        chosen = mx.zeros(rows, mx.int32)
        yield verdict(
            f"{'qmv' if rows <= ROWS[2] else 'qmm'}_experts, {codec.name}, {rows} rows",
            partial(products.multiply_experts, array, w[None], codec, chosen),
            partial(experts.linear, array, chosen),
            x.astype(np.float64) @ weights.T.astype(np.float64),
            BOUND,
            repeats,
        )
    x = np.random.default_rng(0).standard_normal((1, columns)).astype(np.float32)
    array, y = mx.array(x), x.astype(np.float64) @ weights.T.astype(np.float64)
    yield verdict(
        f"qmv_gated, {codec.name}, 1 row",
        partial(products.qmv_gated, array, w, w, codec, "silu"),
        lambda: plain.gated(twin.linear(array), twin.linear(array), "silu"),
        y / (1 + np.exp(-y)) * y,
        BOUND,
        repeats,
    )
    yield verdict(
        f"qmv_joined, {codec.name}, 1 row",
        lambda: products.qmv_joined(array, [w, w, w], codec, codec),
        lambda: mx.concatenate([twin.linear(array) for _ in range(3)], axis=1),
        np.concatenate([y, y, y], axis=1),
        BOUND,
        repeats,
    )
    tokens = mx.array(np.random.default_rng(0).integers(0, outputs, ROWS[2]).astype(np.int32))
    exact = weights[np.array(tokens)].astype(np.float64)
    name = f"rows, {codec.name}"
    yield verdict(name, partial(products.rows, tokens, w, codec), partial(twin.embed, tokens), exact, 0.0, repeats)


def _attention(head_dim: int, rows: int, repeats: int) -> Verdict:
    heads, kv_heads, length = 4, 2, 3 * attention.SPLIT // 2
    random = np.random.default_rng(head_dim)
    queries = mx.array(random.standard_normal((rows, heads, head_dim)).astype(np.float32))
    keys, values = (mx.array(random.standard_normal((kv_heads, length, head_dim)).astype(np.float16)) for _ in range(2))
    scale, window, softcap = head_dim**-0.5, length - 50, 0.0

    attend = attention.attend if rows <= attention.MOST_ROWS else attention.attend_rows

    def ours() -> mx.array:
        return attend(queries, keys, values, length, scale=scale, window=window, softcap=softcap)

    def theirs() -> mx.array:
        return plain.attention(queries, keys, values, length, scale=scale, window=window, softcap=softcap)

    with mx.stream(mx.cpu):
        k, v = keys.astype(mx.float32), values.astype(mx.float32)
        exact = np.array(plain.attention(queries, k, v, length, scale=scale, window=window, softcap=softcap))
    return verdict(f"attention, {head_dim} channels, {rows} rows", ours, theirs, exact, ATTENTION_BOUND, repeats)


def verdict(
    name: str,
    ours: Callable[[], mx.array],
    theirs: Callable[[], mx.array],
    expected: NDArray[Any],
    bound: float,
    repeats: int,
) -> Verdict:
    """``ours`` against what is ``expected``, and its time against that of ``theirs``."""
    try:
        found = np.array(ours())
    except RuntimeError as failure:
        return Verdict(name, 0, bound, failure=str(failure).splitlines()[0])
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    speed = _seconds(theirs, repeats) / _seconds(ours, repeats)
    return Verdict(name, error if np.isfinite(error) else float("inf"), bound, speed)


def _seconds(call: Callable[[], mx.array], repeats: int) -> float:
    """Of one call, the best of three rounds; the calls of a round are queued together."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        mx.eval([call() for _ in range(repeats)])
        best = min(best, (time.perf_counter() - start) / repeats)
    return best
