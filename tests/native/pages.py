"""Sealed pages as the kernels lay them out, taken apart and put together with numpy."""

from __future__ import annotations

import numpy as np

from edgeinfer.cache.codecs import uniform
from edgeinfer.cache.codecs.uniform import Uniform

PAGE = 128


def unpack_tiles(tiles: np.ndarray, bits: int) -> np.ndarray:
    """(..., 64 * bits) bytes -> (..., 16, 32) codes in -2^(b-1) …, from planes as native/core/tiles.h has them."""
    lines = tiles.reshape(*tiles.shape[:-1], -1, 64).astype(np.int16)

    def plane(first: int, width: int, interleaved: bool) -> np.ndarray:
        """Eight chunks of one plane: chunk c in line c % lines (nibbles), or c // chunks a line."""
        each = 8 // width
        count = 8 // each
        chunks = []
        for c in range(8):
            line, slot = (c % count, c // count) if interleaved else (c // each, c % each)
            chunks.append(lines[..., first + line, :] >> (slot * width) & (1 << width) - 1)
        return np.stack(chunks, axis=-2)

    if bits == 8:
        codes = lines.astype(np.uint8).view(np.int8).astype(np.int16)
    elif bits == 3:
        codes = (plane(0, 2, False) | plane(2, 1, False) << 2) - 4
    else:
        codes = plane(0, 4, True)
        if bits > 4:
            codes = codes | plane(4, bits - 4, False) << 4
        codes = codes - (1 << bits - 1)
    chunks = codes.reshape(*codes.shape[:-1], 16, 4)  # (..., 8 chunks, row, 4 columns)
    return np.moveaxis(chunks, -3, -2).reshape(*codes.shape[:-2], 16, 32)


def unpack_page(page: np.ndarray, head_dim: int, bits: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """One kv head's page -> key codes (128, D), key scales (128, groups), value codes and value scales."""
    padded, parts = -(-head_dim // 32) * 32, uniform.groups(head_dim)
    sizes = [8 * (padded // 32) * 64 * bits[0], 4 * (head_dim // 16) * 64 * bits[1], parts * PAGE * 2, parts * PAGE * 2]
    keys, values, key_scales, value_scales = np.split(page[: sum(sizes)], np.cumsum(sizes)[:-1])
    k = unpack_tiles(keys.reshape(8, padded // 32, -1), bits[0])  # tile of positions, tile of dims, 16, 32
    v = unpack_tiles(values.reshape(head_dim // 16, 4, -1), bits[1])  # dims, positions
    return (
        k.transpose(0, 2, 1, 3).reshape(PAGE, padded)[:, :head_dim],
        key_scales.view(np.float16).reshape(parts, PAGE).T,
        v.transpose(1, 3, 0, 2).reshape(PAGE, head_dim),
        value_scales.view(np.float16).reshape(parts, PAGE).T,
    )


def restored(page: np.ndarray, head_dim: int, bits: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a page: each (128, D) float32."""
    k, k_scales, v, v_scales = unpack_page(page, head_dim, bits)
    return (
        Uniform(bits[0], "keys").restore(k.astype(np.int8), k_scales),
        Uniform(bits[1], "values").restore(v.astype(np.int8), v_scales),
    )
