"""Random sequences with sealed pages, and what attention over them is held against."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgeinfer.cache.codecs.uniform import signs
from edgeinfer.metal_kernels.sealed import Held, PageFormat
from edgeinfer.ops.paged import PAGE, SINKS, frontier
from tests.metal_kernels.blocks import wide
from tests.native.pages import restored


@dataclass(frozen=True)
class Sequence:
    """``plain`` and ``coded``: keys and values (K, tokens, D) as float16 and as the codes of all pages have them."""

    form: PageFormat
    held: Held
    plain: tuple[np.ndarray, np.ndarray]
    coded: tuple[np.ndarray, np.ndarray]

    def expected(self, queries: mx.array, position: int, *, scale: float, softcap: float = 0.0) -> np.ndarray:
        """(L, H, D) -> (L, H * D), in float64: codes between the sinks and a row's frontier, else float16."""
        out = []
        for row, query in enumerate(wide(queries)):
            place = position + row
            at = np.arange(place + 1)
            sealed = ((at >= SINKS) & (at < frontier(place)))[:, None]
            group = len(query) // len(self.plain[0])
            keys, values = (
                np.repeat(np.where(sealed, coded[:, : place + 1], plain[:, : place + 1]), group, axis=0)
                for coded, plain in zip(self.coded, self.plain, strict=True)
            )
            scores = np.einsum("hd,hsd->hs", query, keys.astype(np.float64)) * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(np.einsum("hs,hsd->hd", weights / weights.sum(-1, keepdims=True), values).reshape(-1))
        return np.array(out)


def sequence(form: PageFormat, kv_heads: int, tokens: int, first: int, seed: int = 0) -> Sequence:
    """Of ``tokens`` tokens; the buffer begins where a row at ``first`` wants it to. Pages lie anywhere, and what is
    not to be read is no number."""
    random, size = np.random.default_rng(seed), form.head_dim
    base, count = frontier(first), (frontier(tokens - 1) - SINKS) // PAGE
    places = random.permutation(count + 3)[:count]
    packed = random.integers(0, 256, (count + 3, kv_heads, form.nbytes), dtype=np.uint8)
    scales = 4 * PAGE * -(-size // PAGE)  # bytes of keys and values together
    packed[..., -scales:] = 0xFF
    largest = np.repeat([2.0 ** (1 - form.key_bits), 2.0 ** (1 - form.value_bits)], scales // 4)
    for place in places:
        drawn = random.uniform(0.5, 2, (kv_heads, scales // 2)) * largest
        packed[place, :, -scales:] = drawn.astype(np.float16).view(np.uint8)
    plain = [random.standard_normal((kv_heads, tokens, size)).astype(np.float16) for _ in range(2)]
    coded = [each.astype(np.float32) for each in plain]
    for index, place in enumerate(places):
        for head in range(kv_heads):
            opened = restored(packed[place, head], size, (form.key_bits, form.value_bits))
            for stored, rows in zip(coded, opened, strict=True):
                stored[head, SINKS + index * PAGE : SINKS + (index + 1) * PAGE] = rows
    capacity = SINKS - (-(tokens - base) // PAGE) * PAGE
    buffers = []
    for each in plain:
        buffer = np.full((kv_heads, capacity, size), np.nan, np.float16)
        buffer[:, :SINKS], buffer[:, SINKS : SINKS + tokens - base] = each[:, :SINKS], each[:, base:]
        buffers.append(mx.array(buffer))
    held = Held(*buffers, base, mx.array(packed), mx.array(places.astype(np.int32)), mx.array(signs(size)))
    return Sequence(form, held, (plain[0], plain[1]), (coded[0], coded[1]))
