"""Products with packed matrices, and rows of them. w: (N, bytes of a row) uint8, exactly the blocks of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from edgeinfer.metal_kernels.launcher import LEAST, Template, launch
from edgeinfer.metal_kernels.specs import ACTIVATIONS
from edgeinfer.metal_kernels.tuning import ROW_TILES, outputs_for, tuning
from edgeinfer.quant.codec import Codec

TILES = (32, 64)
"""Rows of x that a tile of the kernel for many rows has; a call takes the smaller one if it has no more rows."""
TILE_OUTPUTS = 32
DECODED = 64 << 20
"""Bytes of a matrix that are decoded at once for a dense product."""
STEP = 256
"""Weights that a simdgroup takes at once."""
CHUNK = 8
"""Consecutive weights that a lane unpacks at once."""


def supports(codec: Codec, columns: int) -> bool:
    """Whether matrices of this codec with rows of so many weights have kernels; they read a row two bytes at a time."""
    whole = columns % max(CHUNK, codec.weights) == 0
    return codec.decodable and whole and columns // codec.weights * codec.bytes % 2 == 0


@dataclass(frozen=True, slots=True)
class Extras:
    """What a product of few rows does along the way: rms_norm(x, gain, eps) before it, bias and residual behind it.

    gain: (K,), bias: (N,), float32; residual: (M, N).
    """

    gain: mx.array | None = None
    eps: float = 0.0
    bias: mx.array | None = None
    residual: mx.array | None = None

    def inputs(self) -> list[mx.array]:
        """gain, bias, residual, eps, and which of the three there are, as kernels take them."""
        given = (self.gain, self.bias, self.residual)
        arrays = [mx.zeros(LEAST) if each is None else each for each in given]
        return [*arrays, mx.array(self.eps, mx.float32), *(mx.array(each is not None) for each in given)]


def multiply(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """x @ decode(w).T, summed in float32. x: (M, K) -> (M, N) of the same type.

    Up to 16 rows have the same bits alone and together; very many are multiplied in float16.
    """
    if x.shape[0] >= tuning().dense_rows:
        return dense(x, w, codec)
    return qmv(x, w, codec) if x.shape[0] <= tuning().small_rows else qmm(x, w, codec)


def dense(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """The product of very many rows by MLX, over weights decoded to float16: at most DECODED bytes of them at a time.

    Rows are divided by their largest magnitude, so that none leaves the range of float16.
    """
    peak = mx.maximum(mx.max(mx.abs(x), axis=-1, keepdims=True), 1e-30)
    half = (x / peak).astype(mx.float16)
    step = max(1, DECODED // (2 * x.shape[1]))
    slices = [half @ decode(w[start : start + step], codec).T for start in range(0, w.shape[0], step)]
    product = slices[0] if len(slices) == 1 else mx.concatenate(slices, axis=1)
    return (product.astype(mx.float32) * peak).astype(x.dtype)


def qmv(x: mx.array, w: mx.array, codec: Codec, extras: Extras | None = None) -> mx.array:
    """The kernel for few rows: reads each byte of the matrix once for every 16 of them."""
    extras = extras or Extras()
    rows, outputs = x.shape[0], w.shape[0]
    template, grid, threadgroup = _few_rows(rows, [outputs], x.dtype, codec)
    (y,) = launch("qmv", [w, x, *extras.inputs()], template, grid, threadgroup, [(rows, outputs)], [x.dtype])
    return y


def qmv_joined(
    x: mx.array, matrices: Sequence[mx.array], codec: Codec, last: Codec, extras: Extras | None = None
) -> mx.array:
    """As ``qmv``, of three matrices whose results lie side by side; the last may have a codec of its own.

    The bits are those of three calls. x: (M, K) -> (M, the rows of all matrices).
    """
    extras = extras or Extras()
    rows, outputs = x.shape[0], [matrix.shape[0] for matrix in matrices]
    template, grid, threadgroup = _few_rows(rows, outputs, x.dtype, codec)
    template = [*template[:2], ("LAST", last.ggml_id), *template[2:]]
    inputs = [*matrices, x, *extras.inputs()]
    (y,) = launch("qmv_joined", inputs, template, grid, threadgroup, [(rows, sum(outputs))], [x.dtype])
    return y


def qmv_gated(
    x: mx.array, gate: mx.array, up: mx.array, codec: Codec, activation: str, extras: Extras | None = None
) -> mx.array:
    """activation(gate) * up of two matrices of one codec and shape, for few rows. Of the extras only a norm."""
    extras = extras or Extras()
    rows, outputs = x.shape[0], gate.shape[0]
    template, grid, threadgroup = _few_rows(rows, [outputs], x.dtype, codec)
    template = [*template, ("ACTIVATION", ACTIVATIONS.index(activation))]
    gain = mx.zeros(LEAST) if extras.gain is None else extras.gain
    inputs = [gate, up, x, gain, mx.array(extras.eps, mx.float32), mx.array(extras.gain is not None)]
    (y,) = launch("qmv_gated", inputs, template, grid, threadgroup, [(rows, outputs)], [x.dtype])
    return y


def _few_rows(
    rows: int, outputs: Sequence[int], dtype: mx.Dtype, codec: Codec
) -> tuple[list[tuple[str, int | bool | mx.Dtype]], tuple[int, int, int], tuple[int, int, int]]:
    """Template, grid and threadgroup of the kernels for few rows; ``outputs``: of each matrix."""
    tile = next((each for each in ROW_TILES if each >= rows), ROW_TILES[-1])
    tuned = tuning()
    per_simdgroup = outputs_for(tuned, tile)
    tiles = sum(-(-each // per_simdgroup) for each in outputs)
    groups = -(-tiles // tuned.simdgroups)
    template: list[tuple[str, int | bool | mx.Dtype]] = [
        ("T", dtype),
        ("CODEC", codec.ggml_id),
        ("ROWS", tile),
        ("OUTPUTS", per_simdgroup),
        ("SIMDGROUPS", tuned.simdgroups),
    ]
    return template, (32, tuned.simdgroups * groups, -(-rows // tile)), (32, tuned.simdgroups, 1)


def qmm(x: mx.array, w: mx.array, codec: Codec) -> mx.array:
    """The kernel for many rows: reads each byte of the matrix once for every 64 of them."""
    rows, outputs = x.shape[0], w.shape[0]
    template, grid, threadgroup = _many_rows(rows, outputs, x.dtype, codec, TILES)
    (y,) = launch("qmm", [w, x], template, grid, threadgroup, [(rows, outputs)], [x.dtype])
    return y


def _many_rows(
    rows: int, outputs: int, dtype: mx.Dtype, codec: Codec, tiles: Sequence[int]
) -> tuple[Template, tuple[int, int, int], tuple[int, int, int]]:
    """Template, grid and threadgroup of the kernels for many rows."""
    tile = next((each for each in tiles if each >= rows), tiles[-1])
    template: Template = [("T", dtype), ("CODEC", codec.ggml_id), ("ROWS", tile)]
    return template, (128 * -(-outputs // TILE_OUTPUTS), -(-rows // tile), 1), (128, 1, 1)


def multiply_experts(x: mx.array, w: mx.array, codec: Codec, experts: mx.array) -> mx.array:
    """Each row by a matrix of its own: y[m] = decode(w[experts[m]]) @ x[m].

    x: (M, K), w: (E, N, bytes of a row), experts: (M,) int32 -> (M, N). Sort the rows by expert: those that follow one
    another share what is read.
    """
    rows, outputs = x.shape[0], w.shape[1]
    name, (template, grid, threadgroup) = (
        ("qmv_experts", _few_rows(rows, [outputs], x.dtype, codec))
        if rows <= tuning().small_rows
        else ("qmm_experts", _many_rows(rows, outputs, x.dtype, codec, TILES[:1]))
    )
    (y,) = launch(name, [w, x, experts], template, grid, threadgroup, [(rows, outputs)], [x.dtype])
    return y


def rows(tokens: mx.array, w: mx.array, codec: Codec, dtype: mx.Dtype = mx.float32) -> mx.array:
    """The rows that ``tokens`` name, decoded. (T,) int32 -> (T, K)."""
    count, columns = tokens.shape[0], w.shape[1] // codec.bytes * codec.weights
    grid = (32, count, -(-columns // STEP))
    template: Template = [("T", dtype), ("CODEC", codec.ggml_id)]
    (y,) = launch("rows", [w, tokens], template, grid, (32, 1, 1), [(count, columns)], [dtype])
    return y


def decode(w: mx.array, codec: Codec, dtype: mx.Dtype = mx.float16) -> mx.array:
    """The whole matrix, for a dense multiplication. -> (N, K)."""
    return rows(mx.arange(w.shape[0], dtype=mx.int32), w, codec, dtype)
