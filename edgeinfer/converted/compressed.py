"""The formats of compressed-tensors (vLLM's): packed integers, 8-bit integers, FP8 and NVFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.folder import Folder
from edgeinfer.converted.matrices import (
    Blocks,
    Matrix,
    Parts,
    Refusal,
    affine_matrix,
    as_bf16,
    from_e4m3,
    group_order,
    reordered,
)
from edgeinfer.converted.schemes import fp8, weight_groups
from edgeinfer.quant.affine import unpack_bits
from edgeinfer.quant.codebooks import E2M1
from edgeinfer.quant.codec import AFFINE_BITS, CODECS


def compressed(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """A module in whichever of the formats its tensors show."""
    name = f"{module}.weight"
    if f"{name}_packed" in folder:
        return _nvfp4(folder, name) if f"{name}_global_scale" in folder else _packed(folder, name, settings)
    kind = folder.info(name).dtype
    if kind == "F8_E4M3":
        return fp8(folder, module, settings)
    if kind == "I8":
        return _int8(folder, name)
    raise Refusal(f"of {kind} with a weight_scale")


def _packed(folder: Folder, name: str, settings: Mapping[str, Any]) -> Matrix:
    """q of a row in int32 words, the first lowest; w = scale * (q - zero), zero the middle where there is none."""
    shape = folder.read(f"{name}_shape").reshape(-1).tolist()
    packed, scales = folder.info(f"{name}_packed"), folder.info(f"{name}_scale")
    groups = scales.shape[-1]
    bits = _bits(settings)
    if len(shape) != 2 or bits not in AFFINE_BITS or 32 % bits or len(packed.shape) != 2:
        raise Refusal(f"packed as {bits} bits of shape {shape}; supported: 2, 4 and 8 bits of a matrix")
    rows, columns = shape
    if packed.shape != (rows, -(-columns * bits // 32)) or columns % 32 or groups < 1 or columns % groups:
        raise Refusal(f"{list(packed.shape)} words and {groups} groups for {shape} weights")

    order = group_order(folder, f"{name}_g_idx", columns, groups)

    def parts() -> Parts:
        q = unpack_bits(folder.raw(f"{name}_packed").reshape(rows, -1), bits)
        scale = folder.floats(f"{name}_scale").reshape(rows, groups)
        zeros: NDArray[Any] = np.full((rows, groups), 2 ** (bits - 1), np.float32)
        if f"{name}_zero_point" in folder:
            words = np.ascontiguousarray(folder.read(f"{name}_zero_point").T).view(np.uint8)
            zeros = unpack_bits(words, bits)[:, :rows].T.astype(np.float32)
        return q, scale, -scale * zeros

    if len(order):
        return reordered((rows, columns), order, parts)
    return affine_matrix((rows, columns), bits, columns // groups, parts)


def _int8(folder: Folder, name: str) -> Matrix:
    rows, columns = folder.info(name).shape
    groups = folder.info(f"{name}_scale").shape[-1]
    if groups < 1 or columns % groups:
        raise Refusal(f"{groups} groups of scales for {columns} columns")

    def parts() -> Parts:
        scale = folder.floats(f"{name}_scale").reshape(rows, groups)
        return folder.raw(name).reshape(rows, columns) ^ np.uint8(128), scale, np.float32(-128) * scale

    return affine_matrix((rows, columns), 8, columns // groups, parts)


def _nvfp4(folder: Folder, name: str) -> Matrix:
    """E2M1 in groups of 16 with an E4M3 scale, all divided by one float32; rounded to bfloat16."""
    rows, half = folder.info(f"{name}_packed").shape

    def make() -> Blocks:
        q = unpack_bits(folder.raw(f"{name}_packed").reshape(rows, half), 4)
        scale = from_e4m3(folder.read(f"{name}_scale")) / folder.floats(f"{name}_global_scale").reshape(1, 1)
        return as_bf16(E2M1[q] * np.float32(0.5) * np.repeat(scale, 16, axis=1))

    return Matrix(CODECS["bf16"], (rows, 2 * half), make)


def _bits(settings: Mapping[str, Any]) -> int:
    """The width that all groups of the configuration share."""
    widths = {weights.get("num_bits") for weights in weight_groups(settings)}
    width = widths.pop() if len(widths) == 1 else 0
    return width if type(width) is int else 0
