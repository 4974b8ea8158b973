"""The steps of a layer put together from single operations: what a GPU runs, and the twin of ``native``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from edgeinfer.ops.implementation import Implementation
from edgeinfer.ops.paged import New, Paging
from edgeinfer.ops.parts import Cache, HeadsParts, LinearMap, MapParts, Span

BLOCK = 256
"""Positions by which a cache grows at least."""


@dataclass(frozen=True, slots=True)
class ComposedMap:
    parts: MapParts
    here: Implementation

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        parts, here = self.parts, self.here
        if parts.norm is not None:
            x = here.rms_norm(x, parts.norm, parts.eps)
        products = [weight.linear(x) for weight in parts.weights]
        if parts.activation:
            y = here.gated(products[0], products[1], parts.activation)
        else:
            y = products[0] if len(products) == 1 else mx.concatenate(products, axis=1)
        if parts.bias is not None:
            y = here.add(y, parts.bias)
        if parts.post_norm is not None:
            y = here.rms_norm(y, parts.post_norm, parts.eps)
        return y if residual is None else here.add(residual, y)


@dataclass(frozen=True, slots=True)
class ComposedChain:
    first: LinearMap
    then: LinearMap

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        return self.then(self.first(x), residual)


@dataclass(frozen=True, slots=True)
class ComposedHeads:
    parts: HeadsParts
    output: LinearMap | None
    here: Implementation

    def __call__(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        mixed, written = [], []
        for span, cache in zip(spans, caches, strict=True):
            rows = qkv if span.rows == qkv.shape[0] else qkv[span.start : span.start + span.rows]
            out, updated = self._one(rows, span, cache)
            mixed.append(out)
            written.append(updated)
        joined = mixed[0] if len(mixed) == 1 else mx.concatenate(mixed)
        return joined if self.output is None else self.output(joined, residual), written

    def paged(
        self, qkv: mx.array, spans: Sequence[Span], caches: Sequence[Cache], paging: Paging, residual: mx.array | None
    ) -> tuple[mx.array, list[Cache]]:
        parts = self.parts
        query_end, key_end = parts.heads * parts.head_dim, (parts.heads + parts.kv_heads) * parts.head_dim
        mixed, written = [], []
        for span, cache, frame in zip(spans, caches, paging.frames, strict=True):
            rows = qkv if span.rows == qkv.shape[0] else qkv[span.start : span.start + span.rows]
            queries = self._turned(rows[:, :query_end], parts.heads, parts.q_norm, span)
            keys = self._turned(rows[:, query_end:key_end], parts.kv_heads, parts.k_norm, span)
            new = New(queries, keys, self.here.split_heads(rows[:, key_end:], parts.kv_heads))
            out, updated = frame.step(parts, self.here, new, span, cache, paging.place)
            mixed.append(out)
            written.append(updated)
        joined = mixed[0] if len(mixed) == 1 else mx.concatenate(mixed)
        return joined if self.output is None else self.output(joined, residual), written

    def block(
        self, qkv: mx.array, start: int, cache: Cache, residual: mx.array, output: LinearMap
    ) -> tuple[mx.array, Cache]:
        rows = qkv.shape[0]
        queries, cache = self._written(qkv, Span(0, rows, start), cache)
        mixed = [self._attended(queries[row : row + 1], cache, start + rows) for row in range(rows)]
        return output(mx.concatenate(mixed), residual), cache

    def _one(self, qkv: mx.array, span: Span, cache: Cache) -> tuple[mx.array, Cache]:
        queries, cache = self._written(qkv, span, cache)
        return self._attended(queries, cache, span.offset + span.rows), cache

    def _attended(self, queries: mx.array, cache: Cache, length: int) -> mx.array:
        parts = self.parts
        return self.here.attention(
            queries,
            cache[0],
            cache[1],
            length,
            scale=parts.scale,
            window=parts.window,
            softcap=parts.softcap,
            sinks=parts.sinks,
        )

    def _written(self, qkv: mx.array, span: Span, cache: Cache) -> tuple[mx.array, Cache]:
        """The queries of new rows, (L, H, D), and the cache with their keys and values."""
        parts, here = self.parts, self.here
        query_end, key_end = parts.heads * parts.head_dim, (parts.heads + parts.kv_heads) * parts.head_dim
        q = self._turned(qkv[:, :query_end], parts.heads, parts.q_norm, span)
        if parts.borrows:
            return q, cache
        k = self._turned(qkv[:, query_end:key_end], parts.kv_heads, parts.k_norm, span)
        k, v = self._kept(k, here.split_heads(qkv[:, key_end:], parts.kv_heads))
        if not cache:
            nothing = mx.zeros((parts.kv_heads, 0, parts.head_dim), here.KV_DTYPE)
            cache = (nothing, nothing)
        return q, tuple(write_rows(old, new, span.offset) for old, new in zip(cache, (k, v), strict=True))

    def _turned(self, x: mx.array, heads: int, norm: mx.array | None, span: Span) -> mx.array:
        """(L, heads * D) -> (L, heads, D)."""
        split = self.here.split_heads(x, heads)
        if norm is not None:
            split = self.here.rms_norm(split, norm, self.parts.eps)
        return self.here.rope(split, self.parts.rotary, span.offset)

    def _kept(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """What the cache is to keep of new rows: (L, K, D) each. An evaluation keeps less than everything."""
        return keys, values


def attend_latents(
    here: Implementation,
    queries: mx.array,
    latents: mx.array,
    spans: Sequence[Span],
    caches: Sequence[Cache],
    scale: float,
    value_dim: int,
) -> tuple[mx.array, list[Cache]]:
    """queries: (T, H, D), latents: (T, D) -> (T, H * value_dim), and the caches with the latents written."""
    mixed: list[mx.array] = []
    written: list[Cache] = []
    for span, cache in zip(spans, caches, strict=True):
        rows = slice(span.start, span.start + span.rows)
        stored = cache[0] if cache else mx.zeros((1, 0, latents.shape[1]), here.KV_DTYPE)
        keys = write_rows(stored, latents[rows, None], span.offset)
        length = span.offset + span.rows
        mixed.append(
            here.attention(
                queries[rows], keys, keys[..., :value_dim], length, scale=scale, window=0, softcap=0.0, sinks=None
            )
        )
        written.append((keys,))
    return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed), written


def write_rows(stored: mx.array, new: mx.array, length: int) -> mx.array:
    """New rows (L, K, D) behind the first ``length`` ones of (K, capacity, D)."""
    needed = length + new.shape[0]
    kv_heads, capacity, size = stored.shape
    if needed > capacity:
        rows = -(-max(needed, capacity + capacity // 4) // BLOCK) * BLOCK
        stored = mx.concatenate([stored, mx.zeros((kv_heads, rows - capacity, size), stored.dtype)], axis=1)
    rows_first = new.swapaxes(0, 1).astype(stored.dtype)
    return mx.slice_update(stored, rows_first, mx.array([length]), axes=[1])
