"""What a tensor of a checkpoint becomes where GGUF has its numbers in another order, another shape or other parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.matrices import Matrix, Refusal, as_bf16
from edgeinfer.quant.codec import CODECS, decode

if TYPE_CHECKING:
    from edgeinfer.converted.settings import Settings

Pieces: TypeAlias = dict[str, Matrix]
"""By their GGUF names without the layer's."""
Reshape: TypeAlias = "Callable[[Settings, str, Matrix], Pieces]"
"""Settings, the name, the matrix. Raises Refusal for shapes that do not fit the settings."""
Floats: TypeAlias = NDArray[np.float32]


def picked(matrix: Matrix, order: NDArray[Any], shape: tuple[int, ...]) -> Matrix:
    """Some of the rows, in another order; of a vector, some of its numbers."""
    make, size = matrix.make, matrix.codec.bytes
    if len(matrix.shape) > 1:
        return Matrix(matrix.codec, shape, lambda: make()[order])
    return Matrix(matrix.codec, shape, lambda: make().reshape(-1, size)[order].reshape(1, -1))


def as_floats(matrix: Matrix, shape: tuple[int, ...], change: Callable[[Floats], Floats] = lambda w: w) -> Matrix:
    """Decoded to float32 and changed, in another shape."""

    def make() -> NDArray[np.uint8]:
        weights = change(decode(matrix.codec, matrix.make()).reshape(matrix.shape))
        return np.ascontiguousarray(weights, "<f4").view(np.uint8).reshape(-1, shape[-1] * 4)

    return Matrix(CODECS["f32"], shape, make)


def one_plus(matrix: Matrix) -> Matrix:
    """A norm that multiplies by 1 + w."""
    return as_floats(matrix, matrix.shape, lambda weights: weights + np.float32(1))


def inputs_last(matrix: Matrix) -> Matrix:
    """Of floats (E, columns, rows) -> (E, rows, columns)."""
    experts, columns, rows = matrix.shape
    size, make = matrix.codec.bytes, matrix.make

    def turned() -> NDArray[np.uint8]:
        numbers = make().reshape(experts, columns, rows, size).swapaxes(1, 2)
        return np.ascontiguousarray(numbers).reshape(experts * rows, columns * size)

    return Matrix(matrix.codec, (experts, rows, columns), turned)


def flat(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """A matrix of one row as a vector."""
    return {name: as_floats(matrix, (math.prod(matrix.shape),))}


def taps(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """A convolution of single channels, (C, 1, taps), or as MLX has it, (C, taps, 1); its bias stays."""
    if len(matrix.shape) == 1:
        return {name: matrix}
    if len(matrix.shape) != 3 or 1 not in matrix.shape[1:]:
        raise Refusal(f"shape {list(matrix.shape)}; expected channels, 1 and taps")
    return {name: as_floats(matrix, (matrix.shape[0], max(matrix.shape[1:])))}


def decay(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """A of a state space, whose logarithm of -A is stored."""
    return {name: as_floats(matrix, matrix.shape, lambda weights: -np.exp(weights))}


def decay_column(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    return column(settings, name, decay(settings, name, matrix)[name])


def column(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """(n,) -> (n, 1)."""
    return {name: as_floats(matrix, (*matrix.shape, 1))}


def by_group(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """A norm over each group of Mamba 2's channels."""
    groups = settings.whole("n_groups") or 1
    if matrix.shape[0] % groups:
        raise Refusal(f"{matrix.shape[0]} channels in {groups} groups")
    return {name: as_floats(matrix, (groups, matrix.shape[0] // groups))}


def pairs(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """Rows of a head's queries or keys from half a head apart to side by side."""
    heads = settings.heads if name.startswith("attn_q") else settings.kv_heads
    rows = matrix.shape[0]
    if rows % (2 * heads):
        raise Refusal(f"{rows} rows for {heads} heads")
    order = np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return {name: picked(matrix, order, matrix.shape)}


def latents(settings: Settings, name: str, both: Matrix) -> Pieces:
    """A head's rows of kv_b_proj are its keys' and then its values'; GGUF has the keys' turned over."""
    heads, values = settings.heads, settings.whole("v_head_dim") or 0
    rows, columns = both.shape
    if rows % heads or rows // heads <= values:
        raise Refusal(f"{rows} rows for {heads} heads with values of {values} channels")
    keys = rows // heads - values
    dense = both.codec if both.codec.family == "plain" else CODECS["f16"]

    def turned_keys() -> NDArray[np.uint8]:
        weights = decode(both.codec, both.make()).reshape(heads, -1, columns)[:, :keys].swapaxes(1, 2)
        if dense.name == "bf16":
            return as_bf16(weights)
        numbers = np.ascontiguousarray(weights, "<f2" if dense.name == "f16" else "<f4")
        return numbers.view(np.uint8).reshape(heads * columns, -1)

    order = np.arange(rows).reshape(heads, -1)[:, keys:].reshape(-1)
    return {
        "attn_k_b.weight": Matrix(dense, (heads, columns, keys), turned_keys),
        "attn_v_b.weight": picked(both, order, (heads, values, columns)),
    }


def queries_keys_values_gate(settings: Settings, name: str, matrix: Matrix) -> Pieces:
    """Qwen 3 Next's in_proj_qkvz: of each key head its query, its key, its heads' values, and their gates."""
    heads, size = settings.whole("linear_num_key_heads") or 1, settings.whole("linear_key_head_dim") or 1
    rows, columns = matrix.shape
    values = rows // heads - 2 * size
    if rows % heads or values < 2 or values % 2:
        raise Refusal(f"{rows} rows for {heads} heads of {size}")
    order = np.arange(rows).reshape(heads, -1)
    ends = [size, 2 * size, 2 * size + values // 2]
    *mixed, gate = (each.reshape(-1) for each in np.split(order, ends, axis=1))
    qkv = np.concatenate(mixed)
    return {
        "attn_qkv.weight": picked(matrix, qkv, (len(qkv), columns)),
        "attn_gate.weight": picked(matrix, gate, (len(gate), columns)),
    }


def even_and_odd(settings: Settings, name: str, both: Matrix) -> Pieces:
    """A gate's rows and those of what it gates in turn; (E, rows, columns), biases (E, rows)."""
    return {name.replace("gate_up", part): _every_other(both, start) for start, part in enumerate(("gate", "up"))}


def _every_other(both: Matrix, start: int) -> Matrix:
    experts, rows, *columns = both.shape
    if rows % 2:
        raise Refusal(f"{rows} rows of a gate and of what it gates")
    if not columns:
        return as_floats(both, (experts, rows // 2), lambda biases: biases[:, start::2])
    return picked(both, np.arange(start, experts * rows, 2), (experts, rows // 2, *columns))
