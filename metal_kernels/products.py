"""Products with packed matrices, and rows of them. w: (N, bytes of a row) uint8, exactly the blocks of the file."""

from __future__ import annotations

import mlx.core as mx

from edgeinfer.metal_kernels.launcher import Template, launch
from edgeinfer.metal_kernels.tuning import ROW_TILES, outputs_for, tuning
from edgeinfer.quant.codec import Codec

TILE = 32
CHUNK = 8
"""Consecutive weights that a lane unpacks at once."""


def supports(codec: Codec, columns: int) -> bool:
    """Whether matrices of this codec with rows of so many weights have kernels."""
    return codec.decodable and columns % max(CHUNK, codec.weights) == 0


def multiply(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """x @ decode(w).T, summed in float32. x: (M, K) -> (M, N) of the same type.

    Up to 16 rows have the same bits alone and together.
    """
    return qmv(x, w, codec) if x.shape[0] <= tuning().small_rows else qmm(x, w, codec)


def qmv(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """The kernel for few rows: reads each byte of the matrix once for every 16 of them."""
    rows, outputs = x.shape[0], w.shape[0]
    tile = next((each for each in ROW_TILES if each >= rows), ROW_TILES[-1])
    tuned = tuning()
    per_simdgroup = outputs_for(tuned, tile)
    groups = -(-outputs // (per_simdgroup * tuned.simdgroups))
    template: Template = [("T", x.dtype), ("CODEC", codec.ggml_id), ("ROWS", tile), ("OUTPUTS", per_simdgroup),
                ("SIMDGROUPS", tuned.simdgroups)]  # fmt: skip
    grid = (32, tuned.simdgroups * groups, -(-rows // tile))
    (y,) = launch("qmv", [w, x], template, grid, (32, tuned.simdgroups, 1), [(rows, outputs)], [x.dtype])
    return y


def qmm(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """The kernel for many rows: tiles of 32 by 32."""
    rows, outputs = x.shape[0], w.shape[0]
    grid = (128 * -(-outputs // TILE), -(-rows // TILE), 1)
    template: Template = [("T", x.dtype), ("CODEC", codec.ggml_id)]
    (y,) = launch("qmm", [w, x], template, grid, (128, 1, 1), [(rows, outputs)], [x.dtype])
    return y


def rows(tokens: mx.array, w: mx.array, codec: Codec, dtype: mx.Dtype = mx.float32) -> mx.array:
    """The rows that ``tokens`` name, decoded. (T,) int32 -> (T, K)."""
    count, columns = tokens.shape[0], w.shape[1] // codec.bytes * codec.weights
    grid = (columns // CHUNK, count, 1)
    threads = (min(64, columns // CHUNK), 1, 1)
    template: Template = [("T", dtype), ("CODEC", codec.ggml_id)]
    (y,) = launch("rows", [w, tokens], template, grid, threads, [(count, columns)], [dtype])
    return y


def decode(w: mx.array, codec: Codec, dtype: mx.Dtype = mx.float16) -> mx.array:
    """The whole matrix, for a dense multiplication. -> (N, K)."""
    return rows(mx.arange(w.shape[0], dtype=mx.int32), w, codec, dtype)
