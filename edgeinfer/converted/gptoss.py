"""gpt-oss's experts as OpenAI publishes them: MXFP4 blocks, their exponents beside them."""

from __future__ import annotations

import numpy as np

from edgeinfer.converted.folder import Folder
from edgeinfer.converted.matrices import Blocks, Matrix, Refusal, mxfp4_blocks
from edgeinfer.quant.affine import unpack_bits
from edgeinfer.quant.codec import CODECS

BLOCKS, SCALES = "_blocks", "_scales"
"""Ends of names."""


def expert_blocks(folder: Folder, name: str) -> Matrix:
    """A tensor of blocks, (E, rows, blocks of a row, 16 bytes). Raises Refusal for shapes that do not fit."""
    scales = name.removesuffix(BLOCKS) + SCALES
    shape, exponents = folder.info(name).shape, folder.info(scales).shape
    if len(shape) != 4 or shape[3] != 16 or exponents != shape[:3]:
        raise Refusal(f"blocks {list(shape)}, scales {list(exponents)}")
    experts, rows, count, _ = shape

    def make() -> Blocks:
        packed = np.ascontiguousarray(folder.raw(name)).reshape(experts * rows, -1)
        return mxfp4_blocks(unpack_bits(packed, 4), folder.raw(scales).reshape(experts * rows, -1))

    return Matrix(CODECS["mxfp4"], (experts, rows, 32 * count), make)
