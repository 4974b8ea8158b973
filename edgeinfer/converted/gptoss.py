"""gpt-oss's experts as OpenAI publishes them: MXFP4 blocks of a layer in one tensor, gate and up row by row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.folder import Folder
from edgeinfer.converted.schemes import Blocks, Matrix, Refusal, mxfp4_blocks
from edgeinfer.quant.affine import unpack_bits
from edgeinfer.quant.codec import CODECS

PARTS = ("gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias", "down_proj_blocks", "down_proj_scales",
         "down_proj_bias")  # fmt: skip
"""What follows ``model.layers.{i}.mlp.experts.``"""


def expert_matrices(folder: Folder, base: str) -> dict[str, Matrix]:
    """Matrices and biases by their GGUF names without the layer's. Raises Refusal for shapes that do not fit."""
    shapes = {part: folder.info(f"{base}.{part}").shape for part in PARTS}
    found: dict[str, Matrix] = {}
    for name, rows in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2)), ("down", slice(None))):
        stored = "down_proj" if name == "down" else "gate_up_proj"
        blocks, scales, bias = (shapes[f"{stored}_{part}"] for part in ("blocks", "scales", "bias"))
        if len(blocks) != 4 or blocks[3] != 16 or scales != blocks[:3] or bias != blocks[:2]:
            raise Refusal(f"{stored}: blocks {list(blocks)}, scales {list(scales)}, biases {list(bias)}")
        count, height, width = blocks[0], len(range(blocks[1])[rows]), 32 * blocks[2]
        found[f"ffn_{name}_exps.weight"] = Matrix(
            CODECS["mxfp4"], (count, height, width), _blocks(folder, f"{base}.{stored}", rows)
        )
        found[f"ffn_{name}_exps.bias"] = Matrix(CODECS["f32"], (count, height), _bias(folder, f"{base}.{stored}", rows))
    return found


def _blocks(folder: Folder, name: str, rows: slice) -> Callable[[], Blocks]:
    def make() -> Blocks:
        packed, scales = (_whole(folder, f"{name}_{part}")[:, rows] for part in ("blocks", "scales"))
        height = math.prod(packed.shape[:2])
        q = unpack_bits(np.ascontiguousarray(packed).reshape(height, -1), 4)
        return mxfp4_blocks(q, np.ascontiguousarray(scales).reshape(height, -1))

    return make


def _whole(folder: Folder, name: str) -> Blocks:
    return folder.raw(name).reshape(folder.info(name).shape)


def _bias(folder: Folder, name: str, rows: slice) -> Callable[[], Blocks]:
    def make() -> Blocks:
        bias: NDArray[np.float32] = np.ascontiguousarray(folder.floats(f"{name}_bias")[:, rows])
        return bias.view(np.uint8).reshape(len(bias), -1)

    return make
