"""Attention over sealed pages: the bytes are numpy's, rows do not depend on the step, and results follow the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.cache.codecs.uniform import Uniform
from edgeinfer.ops.paged import PAGE, SINKS, TAIL, frontier
from tests.native.pages import restored, unpack_page

CASES = [
    # head_dim, kv heads, group, bits of keys and values, tokens, softcap
    (64, 3, 3, (8, 4), 1100, 0.0),
    (16, 1, 2, (4, 3), 900, 0.0),
    (256, 1, 4, (6, 8), 700, 0.0),
    (80, 2, 1, (5, 4), 800, 5.0),
    (96, 2, 2, (3, 3), 700, 0.0),
    (192, 1, 1, (8, 4), 700, 0.0),
    (512, 1, 2, (8, 4), 700, 0.0),
]


@dataclass
class Heads:
    """Heads that are not rotated by position, so that keys are their rows."""

    native: Any
    head_dim: int
    kv_heads: int
    group: int
    bits: tuple[int, int]
    softcap: float = 0.0

    def __post_init__(self) -> None:
        heads = self.kv_heads * self.group
        self.heads = self.native.heads(
            heads, self.kv_heads, self.head_dim, scale=self.head_dim**-0.5, softcap=self.softcap
        )
        self.rope = self.native.rope(np.zeros(self.head_dim // 2), 1.0)
        self.page = self.native.page_bytes(self.head_dim, *self.bits)

    def run(self, qkv: np.ndarray, chunks: list[int]) -> tuple[np.ndarray, list[Any]]:
        """Rows in steps of so many: (L, H * D), and the blocks."""
        blocks: list[Any] = []
        buffer, base, start, out = None, SINKS, 0, []
        for count in chunks:
            filled, keep = len(blocks), frontier(start)
            pages = (frontier(start + count - 1) - SINKS) // PAGE
            blocks += [self.native.Block(self.page * self.kv_heads) for _ in range(pages - filled)]
            frame = self.native.Frame(SINKS, base, keep, blocks, filled)
            x, table, rows = mx.array(qkv[start : start + count]), self.rope([(0, count, start)]), (0, count, start)
            buffer = self.heads.append_moving(x, table, buffer, rows, frame, (0, *self.bits))
            mixed = self.heads.attend_sealed(x, table, [buffer], [rows], [frame], (0, *self.bits))
            mx.eval(mixed, buffer)
            out.append(np.array(mixed))
            base, start = keep, start + count
        return np.concatenate(out), blocks

    def exact(self, qkv: np.ndarray) -> np.ndarray:
        rows, table = (0, len(qkv), 0), self.rope([(0, len(qkv), 0)])
        cache = self.heads.append(mx.array(qkv), table, None, rows)
        return np.array(self.heads.attend(mx.array(qkv), table, [cache], [rows]))

    def split(self, qkv: np.ndarray) -> tuple[np.ndarray, ...]:
        """Queries (L, H, D), keys and values (L, K, D) as float16 holds them."""
        q, k, v = np.split(qkv, [self.kv_heads * self.group * self.head_dim, -self.kv_heads * self.head_dim], axis=1)
        shape = (len(qkv), -1, self.head_dim)
        return q.reshape(shape), *(x.astype(np.float16).astype(np.float32).reshape(shape) for x in (k, v))


def random_rows(heads: Heads, count: int, seed: int = 0) -> np.ndarray:
    width = (heads.group + 2) * heads.kv_heads * heads.head_dim
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def steps(count: int) -> list[list[int]]:
    """The same rows at once, in slices, and one by one behind a slice."""
    return [[count], [300] * (count // 300) + [count % 300 or 300][: count % 300], [512] + [1] * (count - 512)]


@pytest.mark.parametrize("case", CASES)
def test_pages_and_attention(native: Any, each_isa: str, case: tuple[Any, ...]) -> None:
    head_dim, kv_heads, group, bits, count, softcap = case
    heads = Heads(native, head_dim, kv_heads, group, bits, softcap)
    qkv = random_rows(heads, count)
    (whole, blocks), *others = [heads.run(qkv, chunks) for chunks in steps(count)]
    for other, same in others:
        assert np.array_equal(other, whole)
        assert all(np.array_equal(a.memory(), b.memory()) for a, b in zip(blocks, same, strict=True))
    short = SINKS + TAIL + PAGE - 1
    assert np.array_equal(whole[:short], heads.exact(qkv)[:short])
    q, k, v = heads.split(qkv)
    seen_k, seen_v = k.copy(), v.copy()
    for index, block in enumerate(blocks):
        rows = slice(SINKS + index * PAGE, SINKS + (index + 1) * PAGE)
        for head in range(kv_heads):
            page = block.memory()[head * heads.page :]
            made = unpack_page(page, head_dim, bits)
            expected = (
                *Uniform(bits[0], "keys").quantize(k[rows, head]),
                *Uniform(bits[1], "values").quantize(v[rows, head]),
            )
            assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=True))
            seen_k[rows, head], seen_v[rows, head] = restored(page, head_dim, bits)
    for position in [*range(0, count, 97), count - 1]:
        expected = attention(q[position], (k, v), (seen_k, seen_v), position, group, softcap)
        assert np.abs(whole[position] - expected).max() < 1e-4  # two bytes a number, and float32 sums


def attention(
    query: np.ndarray,
    exact: tuple[np.ndarray, ...],
    coded: tuple[np.ndarray, ...],
    position: int,
    group: int,
    cap: float,
) -> np.ndarray:
    """In float64, over codes between the sinks and the position's frontier."""
    at = np.arange(position + 1)
    sealed = ((at >= SINKS) & (at < frontier(position)))[:, None, None]
    keys, values = (
        np.repeat(np.where(sealed, c[: position + 1], e[: position + 1]).astype(np.float64), group, axis=1)
        for e, c in zip(exact, coded, strict=True)
    )
    scores = np.einsum("hd,shd->hs", query.astype(np.float64), keys) * query.shape[-1] ** -0.5
    if cap:
        scores = np.tanh(scores / cap) * cap
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: np.ndarray = np.einsum("hs,shd->hd", weights / weights.sum(axis=1, keepdims=True), values).reshape(-1)
    return mixed


@pytest.mark.parametrize("bits", [(8, 4), (3, 3)])
def test_odd_keys(native: Any, each_isa: str, bits: tuple[int, int]) -> None:
    """Zeros and constants stay what they are; what float16 does not hold shows as no number, never as a wrong one."""
    heads = Heads(native, 64, 1, 1, bits)
    qkv = random_rows(heads, 700)
    qkv[:, 64:] = 0
    assert np.array_equal(heads.run(qkv, [700])[0], np.zeros((700, 64), np.float32))
    qkv[:, 128:] = 1
    error = np.linalg.norm(heads.run(qkv, [700])[0] - 1, axis=1) / 8
    assert error.max() < {4: 0.2, 3: 0.4}[bits[1]]
    qkv[:, 64:128] = 1e5  # an infinity in float16, in the exact path as well
    assert not np.isfinite(heads.run(qkv, [700])[0]).any()
    qkv[:, 64:128] = 6e4
    assert np.isfinite(heads.run(qkv, [700])[0]).all()


def test_what_does_not_fit_is_refused(native: Any) -> None:
    heads = Heads(native, 64, 1, 1, (8, 4))
    qkv = random_rows(heads, 700)
    x, table, rows = mx.array(qkv), heads.rope([(0, 700, 0)]), (0, 700, 0)
    small = native.Block(64)
    blocks = [native.Block(heads.page) for _ in range(2)]
    for frame, place in (
        (native.Frame(SINKS, SINKS, SINKS, [], 0), (0, 8, 4)),  # no block for pages in sight
        (native.Frame(SINKS, SINKS, SINKS, [small, small], 0), (0, 8, 4)),
        (native.Frame(SINKS, SINKS, SINKS, blocks, 0), (64, 8, 4)),
        (native.Frame(SINKS, SINKS, SINKS, blocks, 0), (0, 7, 4)),
        (native.Frame(SINKS, SINKS, 2 * SINKS, blocks, 0), (0, 8, 4)),  # lets go of what rows see
        (native.Frame(0, 0, 0, [], 0), (0, 0, 0)),  # no window
    ):
        with pytest.raises(ValueError, match=r"frame|place"):
            heads.heads.append_moving(x, table, None, rows, frame, place)
    assert native.page_sizes() == (PAGE, SINKS, TAIL)
    assert native.page_bytes(160, 8, 4) == native.page_bytes(64, 7, 4) == 0
