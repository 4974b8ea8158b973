"""Quantizes one small matrix with each format's own library, and keeps its tensors and what it decodes them to.

    pip install torch transformers bitsandbytes compressed-tensors
    pip install --no-deps autoawq gptqmodel       (and what they ask for on a CPU: datasets, pypcre, logbar, …)
    python -m tests.converted.golden.make_codes

Writes codes.npz beside this file. None of the libraries is needed to test against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import numpy as np
import torch
from compressed_tensors.compressors import (
    IntQuantizationCompressor,
    NaiveQuantizationCompressor,
    NVFP4PackedCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

BITS = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8}
"""Of the types that numpy has not."""
ROWS, COLUMNS, GROUP = 32, 128, 64
Made = tuple[str, dict[str, Any], dict[str, torch.Tensor], torch.Tensor]
"""A name, the quantization_config, the tensors by what follows the module's name, and the weights."""


def matrix(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    random = np.random.default_rng(5)
    return torch.tensor(0.1 * random.standard_normal((ROWS, COLUMNS)), dtype=dtype)


def affine(bits: int, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros (rows, groups) of the columns' groups."""
    scales, zeros = [], []
    for group in range(int(groups.max()) + 1):
        part = matrix()[:, groups == group]
        low, high = part.min(1).values, part.max(1).values
        scale = ((high - low) / (2**bits - 1)).half().float()
        scales.append(scale)
        zeros.append((-low / scale).round().clamp(0, 2**bits - 1))
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def bitsandbytes() -> Iterator[Made]:
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            for dtype in (torch.bfloat16, torch.float16):
                packed, state = bnb.functional.quantize_4bit(
                    matrix(dtype), blocksize=64, quant_type=kind, compress_statistics=nested
                )
                tensors = {".weight": packed} | {f".weight.{k}": v for k, v in state.as_dict(packed=True).items()}
                name = f"bitsandbytes {kind}{', nested' * nested}, {str(dtype).removeprefix('torch.')}"
                settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
                yield name, settings, tensors, bnb.functional.dequantize_4bit(packed, state)
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(matrix(torch.float16))
    weights = bnb.functional.int8_vectorwise_dequant(codes, scales)
    tensors = {".weight": codes, ".SCB": scales, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    yield "bitsandbytes int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, tensors, weights.half()


def compressed_tensors() -> Iterator[Made]:
    groups = torch.arange(COLUMNS) // GROUP
    for bits in (4, 8):
        for symmetric in (True, False):
            args = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=GROUP, symmetric=symmetric)
            scales, zeros = affine(bits, groups)
            middle = 2 ** (bits - 1)
            state = {"weight": matrix(), "weight_scale": scales.bfloat16()}
            if not symmetric:
                state["weight_zero_point"] = (zeros - middle).to(torch.int8)
            name = f"compressed-tensors pack-quantized {bits} bits{', zeros' * (not symmetric)}"
            yield made_by(name, "pack-quantized", PackedQuantizationCompressor, args, state)
    row = matrix().abs().amax(1, keepdim=True)
    args = QuantizationArgs(num_bits=8, type="int", strategy="channel")
    state = {"weight": matrix(), "weight_scale": (row / 127).bfloat16()}
    yield made_by("compressed-tensors int8", "int-quantized", IntQuantizationCompressor, args, state)
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel")
    state = {"weight": matrix(), "weight_scale": (row / 448).bfloat16()}
    yield made_by("compressed-tensors fp8", "float-quantized", NaiveQuantizationCompressor, args, state)
    args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[8, 64])
    blocks = matrix().reshape(ROWS // 8, 8, COLUMNS // 64, 64).abs().amax((1, 3))
    state = {"weight": matrix(), "weight_scale": (blocks / 448).bfloat16()}
    yield made_by("compressed-tensors fp8 in blocks", "float-quantized", NaiveQuantizationCompressor, args, state)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    whole = (448 * 6 / matrix().abs().max()).reshape(1)
    scale = (matrix().reshape(ROWS, -1, 16).abs().amax(2) / 6 * whole).to(torch.float8_e4m3fn).float()
    state = {"weight": matrix(), "weight_scale": scale, "weight_global_scale": whole}
    yield made_by("compressed-tensors nvfp4", "nvfp4-pack-quantized", NVFP4PackedCompressor, args, state)


def made_by(name: str, form: str, compressor: Any, args: QuantizationArgs, state: dict[str, torch.Tensor]) -> Made:
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    packed = compressor.compress(state, scheme)
    group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
    settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    weights = compressor.decompress(dict(packed), scheme)["weight"]
    return name, settings, {f".{end}": tensor for end, tensor in packed.items()}, weights


def autoawq() -> Iterator[Made]:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    scales, zeros = affine(4, torch.arange(COLUMNS) // GROUP)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False, dtype=torch.float16)
    linear.weight.data = matrix(torch.float16)
    packed = WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scales.T.half(), zeros=zeros.T)
    tensors = {f".{name}": getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
    weights = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, GROUP).T
    yield "awq", {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, tensors, weights


def gptqmodel() -> Iterator[Made]:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    generator = torch.Generator().manual_seed(2)
    for bits in (2, 3, 4, 8):
        for shuffled in (False, True):
            order = torch.arange(COLUMNS) // GROUP
            order = order[torch.randperm(COLUMNS, generator=generator)] if shuffled else order
            scales, zeros = affine(bits, order)
            linear = torch.nn.Linear(COLUMNS, ROWS, bias=False, dtype=torch.float16)
            linear.weight.data = matrix(torch.float16)
            layer = TorchLinear(
                bits=bits, group_size=GROUP, sym=False, desc_act=shuffled, in_features=COLUMNS, out_features=ROWS,
                bias=False, pack_dtype=torch.int32, register_buffers=True,
            )  # fmt: skip
            layer.pack(linear, scales, zeros, order.int())
            layer.post_init()
            tensors = {f".{name}": getattr(layer, name).cpu() for name in ("qweight", "qzeros", "scales", "g_idx")}
            settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "checkpoint_format": "gptq_v2"}
            yield f"gptq {bits} bits{', shuffled' * shuffled}", settings, tensors, layer.dequantize_weight().T


LIBRARIES: dict[str, Callable[[], Iterator[Made]]] = {
    "bitsandbytes": bitsandbytes, "compressed-tensors": compressed_tensors, "autoawq": autoawq, "gptqmodel": gptqmodel,
}  # fmt: skip


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    rows: dict[str, Any] = {}
    for library, make in LIBRARIES.items():
        for name, settings, tensors, weights in make():
            kinds = {end: str(tensor.dtype).removeprefix("torch.") for end, tensor in tensors.items()}
            rows[name] = {"settings": settings, "dtypes": kinds, "made with": f"{library} {version(library)}"}
            for end, tensor in tensors.items():
                bits = BITS.get(kinds[end])
                raw = tensor.detach().contiguous()
                arrays[f"{name}|{end}"] = (raw if bits is None else raw.view(bits)).numpy()
            arrays[f"{name}|"] = weights.detach().float().contiguous().numpy()
            print(name, float((weights.float() - matrix()).abs().max()), kinds)
    arrays["rows"] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    np.savez_compressed(Path(__file__).parent / "codes.npz", **arrays)


if __name__ == "__main__":
    main()
