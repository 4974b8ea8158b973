"""How quantized weights lie in a checkpoint, and the codec that each becomes: rearranged, where one holds it exactly.

A scheme says which of a module's tensors it takes and gives a matrix as blocks. The layouts are those that the programs
which write them publish: mlx, AutoAWQ (GEMM), AutoGPTQ, bitsandbytes, compressed-tensors, and DeepSeek's FP8.
"""

from __future__ import annotations

import json
import math
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
    as_rows,
    from_e4m3,
    group_order,
    mxfp4_blocks,
    reordered,
)
from edgeinfer.quant.affine import unpack_bits
from edgeinfer.quant.codec import AFFINE_BITS, AFFINE_GROUPS, CODECS


def mlx(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """q in uint32 words as one bit string a row; affine with scales and biases, or a mode with shared exponents."""
    mode, bits, group = _mlx_mode(settings)
    packed, scales = folder.info(f"{module}.weight"), folder.info(f"{module}.scales")
    if packed.dtype != "U32":
        raise Refusal(f"of {packed.dtype}; expected U32")
    rows, columns = math.prod(packed.shape[:-1]), packed.shape[-1] * 32 // bits
    if columns % group or math.prod(scales.shape) * group != rows * columns:
        raise Refusal(f"scales of shape {list(scales.shape)} for {columns} columns in groups of {group}")
    shape = (*packed.shape[:-1], columns)

    def q() -> Blocks:
        return unpack_bits(folder.raw(f"{module}.weight").reshape(rows, -1), bits)

    def floats(part: str) -> NDArray[np.float32]:
        return folder.floats(f"{module}.{part}").reshape(rows, -1)

    def exponents() -> Blocks:
        return folder.raw(f"{module}.scales").reshape(rows, -1)

    if mode == "affine":
        return affine_matrix(shape, bits, group, lambda: (q(), floats("scales"), floats("biases")))
    if mode == "mxfp4":
        return Matrix(CODECS["mxfp4"], shape, lambda: mxfp4_blocks(q(), exponents()))
    if mode == "nvfp4" and columns % 64 == 0:
        return Matrix(CODECS["nvfp4"], shape, lambda: _nvfp4(q(), exponents()))
    if mode == "mxfp8":
        return Matrix(
            CODECS["bf16"], shape, lambda: as_bf16(from_e4m3(q()) * np.repeat(_e8m0(exponents()), group, axis=1))
        )
    raise Refusal(f"nvfp4 with {columns} columns; supported: multiples of 64")


def awq(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """AutoAWQ's GEMM layout: eight outputs a word in the order 0 2 4 6 1 3 5 7. w = scale * (q - zero)."""
    bits = settings.get("bits", settings.get("w_bit"))
    if bits != 4 or str(settings.get("version", "gemm")).lower() != "gemm":
        raise Refusal(f"AWQ of {bits!r:.9} bits, version {settings.get('version')!r:.20}; supported: 4 bits, gemm")
    inputs, words = folder.info(f"{module}.qweight").shape
    groups = folder.info(f"{module}.scales").shape[0]
    group = _group(inputs, groups, folder.info(f"{module}.qzeros").shape[0])

    def parts() -> Parts:
        scales = folder.floats(f"{module}.scales").T
        q, zeros = (_awq_words(folder.read(f"{module}.{name}")).T for name in ("qweight", "qzeros"))
        return np.ascontiguousarray(q), scales, -scales * zeros

    return affine_matrix((words * 8, inputs), 4, group, parts)


def gptq(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """AutoGPTQ: q of an input column downwards in words. The first version stores a zero less one.

    Columns may choose their groups (``g_idx``): then no codec has the layout, and weights are rounded to float16, which
    is what its own kernels compute with.
    """
    bits = settings.get("bits")
    if bits not in AFFINE_BITS or bits in (5, 6):
        raise Refusal(f"GPTQ of {bits!r:.9} bits; supported: 2, 3, 4, 8")
    words, outputs = folder.info(f"{module}.qweight").shape
    inputs, groups = words * 32 // bits, folder.info(f"{module}.scales").shape[0]
    group = _group(inputs, groups, folder.info(f"{module}.qzeros").shape[0])
    offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    order = group_order(folder, f"{module}.g_idx", inputs, groups)

    def parts() -> Parts:
        q = unpack_bits(np.ascontiguousarray(folder.read(f"{module}.qweight").T).view(np.uint8), bits)
        zeros = unpack_bits(np.ascontiguousarray(folder.read(f"{module}.qzeros")).view(np.uint8), bits).T
        scales = folder.floats(f"{module}.scales").T
        return q, scales, -scales * (zeros[:outputs].astype(np.float32) + offset)

    shape = outputs, inputs
    return reordered(shape, order, parts) if len(order) else affine_matrix(shape, bits, group, parts)


def bitsandbytes(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """NF4 and FP4 with absmax, nested or not; int8 with one scale a row. Rounded to float16 or bfloat16, as there."""
    name = f"{module}.weight"
    if f"{module}.SCB" in folder:
        shape = folder.info(name).shape
        return Matrix(CODECS["f16"], shape, lambda: as_rows(_int8(folder, module).astype("<f2"), shape))
    state_name = next((each for each in folder.tensors if each.startswith(f"{name}.quant_state.bitsandbytes__")), None)
    if state_name is None:
        raise Refusal("of U8 without a quant_state")
    try:
        state = json.loads(bytes(folder.raw(state_name)).decode())
        shape = tuple(int(each) for each in state["shape"])
        blocksize = int(state["blocksize"])
        dtype, nested, offset = state.get("dtype"), state.get("nested_blocksize"), float(state.get("nested_offset", 0))
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(f"a quant_state that does not say its shape and blocks ({error!r:.60})") from None
    count = math.prod(shape)
    sized = len(shape) == 2 and min(shape) > 0 and blocksize > 0 and count % blocksize == 0
    if not sized or folder.info(name).nbytes * 2 != count:
        raise Refusal(
            f"a quant_state of shape {list(shape)} in blocks of {blocksize}; {folder.info(name).nbytes} bytes"
        )

    def weights() -> NDArray[np.float32]:
        packed = folder.raw(name)
        q = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1, blocksize)
        absmax = folder.read(f"{name}.absmax").reshape(-1)
        if nested:
            steps = folder.floats(f"{name}.nested_quant_map")[absmax]
            absmax = steps * np.repeat(folder.floats(f"{name}.nested_absmax"), nested)[: len(steps)] + np.float32(
                offset
            )
        codes = folder.floats(f"{name}.quant_map")[q]
        return (codes * absmax[:, None].astype(np.float32)).reshape(shape)

    if dtype == "float16":
        return Matrix(CODECS["f16"], shape, lambda: as_rows(weights().astype("<f2"), shape))
    return Matrix(CODECS["bf16"], shape, lambda: as_bf16(weights()))


def fp8(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """E4M3 with a scale a matrix, a row or a block; rounded to bfloat16, which such checkpoints compute with."""
    name = f"{module}.weight"
    shape = folder.info(name).shape
    inverse = f"{name}_scale_inv"
    scale_name = inverse if inverse in folder else f"{name}_scale"

    counts = folder.info(scale_name).shape
    counts = (1, 1) if math.prod(counts) == 1 else (counts[0], math.prod(counts[1:]))
    block = _block(settings) if math.prod(counts) > 1 else None
    tall, wide = block or tuple(-(-size // count) for size, count in zip(shape, counts, strict=True))
    if counts != (-(-shape[0] // tall), -(-shape[1] // wide)) or (not block and (shape[0] % tall or shape[1] % wide)):
        raise Refusal(f"{list(counts)} scales of {tall} by {wide} weights for {list(shape)}")

    def weights() -> NDArray[np.float32]:
        scales = folder.floats(scale_name).reshape(counts)
        spread = np.repeat(np.repeat(scales, tall, axis=0), wide, axis=1)[: shape[0], : shape[1]]
        return from_e4m3(folder.read(name)) * spread

    return Matrix(CODECS["bf16"], shape, lambda: as_bf16(weights()))


def weight_groups(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What compressed-tensors says of weights, for each group of modules."""
    groups = settings.get("config_groups")
    rows = [row.get("weights") for row in groups.values() if isinstance(row, dict)] if isinstance(groups, dict) else []
    return [row for row in rows if isinstance(row, dict)]


def _block(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale, where the configuration says so: of FP8 or of compressed-tensors."""
    found = settings.get("weight_block_size")
    for weights in weight_groups(settings):
        if weights.get("strategy") == "block":
            found = weights.get("block_structure")
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2 or not all(type(each) is int and each > 0 for each in found):
        raise Refusal(f"scales of blocks {found!r:.40}; expected rows and columns")
    return found[0], found[1]


def experts_alone(folder: Folder, module: str, settings: Mapping[str, Any]) -> Matrix:
    """OpenAI's MXFP4, which only experts are in."""
    raise Refusal("quantized outside the experts, which is not known of mxfp4")


def _mlx_mode(settings: Mapping[str, Any]) -> tuple[str, int, int]:
    """Mode, bits and group size. Raises Refusal for a combination that MLX does not have."""
    mode, bits, group = settings.get("mode", "affine"), settings.get("bits"), settings.get("group_size")
    fixed = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
    known = fixed.get(mode) == (bits, group) or (mode == "affine" and bits in AFFINE_BITS and group in AFFINE_GROUPS)
    if not known or type(bits) is not int or type(group) is not int:
        raise Refusal(f"mode {mode!r:.20} with {bits!r:.9} bits in groups of {group!r:.9}; MLX has no such mode")
    return str(mode), bits, group


def _group(inputs: int, groups: int, zeros: int) -> int:
    if groups < 1 or inputs % groups or zeros != groups:
        raise Refusal(f"{groups} groups of scales and {zeros} of zeros for {inputs} columns")
    return inputs // groups


def _awq_words(words: NDArray[Any]) -> Blocks:
    """(n, words) int32 -> (n, 8 * words)."""
    shifts = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)  # of output 0, 1, … 7
    return (words.view(np.uint32)[..., None] >> shifts & 15).astype(np.uint8).reshape(len(words), -1)


def _int8(folder: Folder, module: str) -> NDArray[np.float32]:
    scales = folder.floats(f"{module}.SCB").reshape(-1, 1) / np.float32(127)
    return np.asarray(folder.read(f"{module}.weight") * scales, np.float32)


def _nvfp4(q: Blocks, scales: Blocks) -> Blocks:
    """The same: four scales, then per 16 weights the nibbles of both halves."""
    halves = q.reshape(len(q), -1, 4, 2, 8)
    nibbles = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(len(q), -1, 32)
    return np.concatenate([scales.reshape(len(q), -1, 4), nibbles], axis=2).reshape(len(q), -1)


def _e8m0(exponents: Blocks) -> NDArray[np.float32]:
    """2^(e - 127); 255 is no number."""
    table = np.ldexp(np.float32(1), np.minimum(np.arange(256), 254) - 127).astype(np.float32)
    table[255] = np.nan
    scales: NDArray[np.float32] = table[exponents]
    return scales
