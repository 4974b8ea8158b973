"""Each way that quantized weights are stored, written in its published layout and decoded by a formula of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.errors import UnsupportedModel
from tests.converted.writing import LLAMA, Stored, matrices, others, store, write_folder

NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
         "up_proj": "ffn_up", "down_proj": "ffn_down"}  # fmt: skip
Made = tuple[dict[str, Stored], np.ndarray]
"""The tensors of a module (by what follows its name), and its weights."""
E4M3 = np.array(mx.from_fp8(mx.arange(256).astype(mx.uint8), mx.float32))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def bf16(weights: np.ndarray) -> np.ndarray:
    return np.array(mx.array(weights.astype(np.float32)).astype(mx.bfloat16).astype(mx.float32))


def bits_of(weights: np.ndarray) -> np.ndarray:
    return np.array(mx.array(weights.astype(np.float32)).astype(mx.bfloat16).view(mx.uint16))


def words(q: np.ndarray, bits: int) -> np.ndarray:
    """Along the last axis, as one little-endian string of bits in uint32 words."""
    out = np.zeros((*q.shape[:-1], q.shape[-1] * bits // 32), np.uint32)
    for i in range(q.shape[-1]):
        for bit in range(bits):
            at = i * bits + bit
            out[..., at // 32] |= ((q[..., i].astype(np.uint32) >> bit) & 1) << np.uint32(at % 32)
    return out


def mlx_folder(mode: str, bits: int, group: int) -> tuple[dict[str, Any], Callable[..., Made]]:
    def make(random: np.random.Generator, shape: tuple[int, int]) -> Made:
        weights = mx.array(0.1 * random.standard_normal(shape).astype(np.float32)).astype(mx.bfloat16)
        parts = mx.quantize(weights, group_size=group, bits=bits, mode=mode)
        decoded = mx.dequantize(*(each.astype(mx.float32) if each.dtype == mx.bfloat16 else each for each in parts),
                                group_size=group, bits=bits, mode=mode)  # fmt: skip
        tensors = {".weight": store("U32", np.array(parts[0]))}
        if mode == "affine":
            scales, biases = (np.array(each.astype(mx.float32)) for each in parts[1:])
            tensors |= {".scales": store("BF16", bits_of(scales)), ".biases": store("BF16", bits_of(biases))}
        else:
            tensors[".scales"] = store("U8", np.array(parts[1]))
        return tensors, np.array(decoded.astype(mx.float32))

    quantization = {"group_size": group, "bits": bits} | ({} if mode == "affine" else {"mode": mode})
    return {"quantization": quantization, "quantization_config": quantization}, make


def awq(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    rows, columns, group = *shape, 64
    q, zeros = random.integers(0, 16, (columns, rows)), random.integers(0, 16, (columns // group, rows))
    scales = random.uniform(0.001, 0.01, zeros.shape).astype(np.float16)

    def packed(numbers: np.ndarray) -> np.ndarray:
        out = np.zeros((len(numbers), rows // 8), np.uint32)
        for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            out |= numbers[:, output::8].astype(np.uint32) << np.uint32(4 * place)
        return out.view(np.int32)

    weights = np.repeat(scales, group, 0).astype(np.float32) * (q - np.repeat(zeros, group, 0)).astype(np.float32)
    parts = {
        ".qweight": store("I32", packed(q)),
        ".qzeros": store("I32", packed(zeros)),
        ".scales": store("F16", scales),
    }
    return parts, weights.T


def gptq(bits: int, version: int, shuffled: bool) -> tuple[dict[str, Any], Callable[..., Made]]:
    def make(random: np.random.Generator, shape: tuple[int, int]) -> Made:
        rows, columns, group = *shape, 32
        groups = columns // group
        q, zeros = random.integers(0, 2**bits, (columns, rows)), random.integers(1, 2**bits, (groups, rows))
        scales = random.uniform(0.001, 0.01, zeros.shape).astype(np.float16)
        order = np.arange(columns) // group
        if shuffled:
            random.shuffle(order)
        stored = zeros - 1 if version == 1 else zeros
        parts = {
            ".qweight": store("I32", words(q.T, bits).T.view(np.int32)),
            ".qzeros": store("I32", words(stored, bits).view(np.int32)),
            ".scales": store("F16", scales),
            ".g_idx": store("I32", order),
        }
        weights = scales[order].astype(np.float32) * (q - zeros[order]).astype(np.float32)
        return parts, (weights.astype(np.float16).astype(np.float32) if shuffled else weights).T

    settings = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": shuffled, "sym": False}
    return {"quantization_config": settings | ({"checkpoint_format": "gptq_v2"} if version == 2 else {})}, make


def four_bit(kind: str, nested: bool) -> Callable[..., Made]:
    """bitsandbytes: 64 weights share an absmax, 256 of those a second one."""

    def make(random: np.random.Generator, shape: tuple[int, int]) -> Made:
        table = np.sort(random.uniform(-1, 1, 16)).astype(np.float32)
        q = random.integers(0, 16, shape[0] * shape[1])
        packed = (q[::2] << 4 | q[1::2]).astype(np.uint8)[:, None]
        absmax = random.uniform(0.01, 0.1, len(q) // 64).astype(np.float32)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
        parts = {".weight": store("U8", packed), ".weight.quant_map": store("F32", table)}
        if nested:
            steps, codes = random.uniform(-1, 1, 256).astype(np.float32), random.integers(0, 256, len(absmax))
            outer = random.uniform(0.01, 0.1, -(-len(codes) // 256)).astype(np.float32)
            absmax = steps[codes] * np.repeat(outer, 256)[: len(codes)] + np.float32(0.05)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(np.float32(0.05))}
            parts |= {".weight.absmax": store("U8", codes), ".weight.nested_absmax": store("F32", outer),
                      ".weight.nested_quant_map": store("F32", steps)}  # fmt: skip
        else:
            parts[".weight.absmax"] = store("F32", absmax)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[f".weight.quant_state.bitsandbytes__{kind}"] = store("U8", text)
        return parts, bf16((table[q].reshape(-1, 64) * absmax[:, None]).reshape(shape))

    return make


def int8(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    q, largest = random.integers(-127, 128, shape), random.uniform(0.1, 1, shape[0]).astype(np.float32)
    weights = q.astype(np.float32) * (largest / np.float32(127))[:, None]
    parts = {".weight": store("I8", q), ".SCB": store("F32", largest), ".weight_format": store("U8", np.zeros(()))}
    return parts, weights.astype(np.float16).astype(np.float32)


def fp8_blocks(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    q = random.integers(0, 127, shape) | random.integers(0, 2, shape) << 7
    scales = random.uniform(0.001, 0.01, (-(-shape[0] // 48), -(-shape[1] // 48))).astype(np.float32)
    spread = np.repeat(np.repeat(scales, 48, 0), 48, 1)[: shape[0], : shape[1]]
    parts = {".weight": store("F8_E4M3", q), ".weight_scale_inv": store("F32", scales)}
    return parts, bf16(E4M3[q] * spread)


def fp8_rows(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    q, scales = random.integers(0, 127, shape), bf16(random.uniform(0.001, 0.01, (shape[0], 1)))
    parts = {".weight": store("F8_E4M3", q), ".weight_scale": store("BF16", bits_of(scales))}
    return parts, bf16(E4M3[q] * scales)


def packed_int4(zero_points: bool, shuffled: bool = False) -> Callable[..., Made]:
    def make(random: np.random.Generator, shape: tuple[int, int]) -> Made:
        rows, columns = shape
        q, zeros = random.integers(0, 16, shape), np.full((rows, columns // 32), 8)
        if zero_points:
            zeros = random.integers(0, 16, zeros.shape)
        scales = bf16(random.uniform(0.001, 0.01, zeros.shape))
        parts = {
            ".weight_packed": store("I32", words(q, 4).view(np.int32)),
            ".weight_scale": store("BF16", bits_of(scales)),
            ".weight_shape": store("I64", np.array(shape)),
        }
        if zero_points:
            parts[".weight_zero_point"] = store("I32", words(zeros.T, 4).T.view(np.int32))
        order = np.arange(columns) // 32
        if shuffled:
            random.shuffle(order)
            parts[".weight_g_idx"] = store("I32", order)
        weights = scales[:, order] * (q - zeros[:, order]).astype(np.float32)
        return parts, weights.astype(np.float16).astype(np.float32) if shuffled else weights

    return make


def int8_rows(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    q, scales = random.integers(-128, 128, shape), bf16(random.uniform(0.001, 0.01, (shape[0], 1)))
    return {".weight": store("I8", q), ".weight_scale": store("BF16", bits_of(scales))}, q.astype(np.float32) * scales


def nvfp4_packed(random: np.random.Generator, shape: tuple[int, int]) -> Made:
    q, scales = random.integers(0, 16, shape), random.integers(0x30, 0x70, (shape[0], shape[1] // 16))
    packed = (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)
    parts = {".weight_packed": store("U8", packed), ".weight_scale": store("F8_E4M3", scales),
             ".weight_global_scale": store("F32", np.array([700.0]))}  # fmt: skip
    return parts, bf16(E2M1[q] * np.repeat(E4M3[scales] / np.float32(700), 16, 1))


def compressed(form: str, bits: int = 4) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    group = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": form, "config_groups": group}}


def named(method: str, **settings: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **settings}}


GPTQ = ((4, 1, False), (4, 2, False), (4, 1, True), (8, 1, False), (3, 1, False), (2, 2, False))
SCHEMES: dict[str, tuple[dict[str, Any], Callable[..., Made]]] = {
    **{f"mlx affine {bits} bits, groups of {group}": mlx_folder("affine", bits, group)
       for bits, group in ((2, 64), (3, 64), (4, 32), (4, 64), (4, 128), (5, 64), (6, 32), (8, 128))},
    "mlx mxfp4": mlx_folder("mxfp4", 4, 32),
    "mlx mxfp8": mlx_folder("mxfp8", 8, 32),
    "mlx nvfp4": mlx_folder("nvfp4", 4, 16),
    "awq": (named("awq", bits=4, group_size=64, version="gemm", zero_point=True), awq),
    **{f"gptq {bits} bits, version {version}{', shuffled' * shuffled}": gptq(bits, version, shuffled)
       for bits, version, shuffled in GPTQ},
    **{f"bitsandbytes {kind}{', nested' * nested}": (named("bitsandbytes", load_in_4bit=True), four_bit(kind, nested))
       for kind in ("nf4", "fp4") for nested in (False, True)},
    "bitsandbytes int8": (named("bitsandbytes", load_in_8bit=True), int8),
    "fp8 in blocks": (named("fp8", weight_block_size=[48, 48]), fp8_blocks),
    "compressed-tensors fp8": (compressed("float-quantized", 8), fp8_rows),
    "compressed-tensors int4": (compressed("pack-quantized"), packed_int4(False)),
    "compressed-tensors int4, zeros": (compressed("pack-quantized"), packed_int4(True)),
    "compressed-tensors int4, shuffled": (compressed("pack-quantized"), packed_int4(True, shuffled=True)),
    "compressed-tensors int8": (compressed("int-quantized", 8), int8_rows),
    "compressed-tensors nvfp4": (compressed("nvfp4-pack-quantized"), nvfp4_packed),
}  # fmt: skip


def written(folder: Path, scheme: str) -> dict[str, np.ndarray]:
    """A tiny Llama in this scheme; its matrices by their names in the folder."""
    settings, make = SCHEMES[scheme]
    random, expected = np.random.default_rng(sum(scheme.encode())), {}
    tensors = others(random)
    for module, shape in matrices().items():
        parts, expected[module] = make(random, shape)
        tensors |= {module + part: stored for part, stored in parts.items()}
    write_folder(folder, tensors, LLAMA | settings)
    return expected


def paired(weights: np.ndarray, heads: int) -> np.ndarray:
    """Row r of the first half of a head beside row r of its second half."""
    size = len(weights) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return weights[order]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_those_of_the_published_formula(tmp_path: Path, scheme: str) -> None:
    """To the bit, where the file's own float type can hold them; rounded once where its library rounds too."""
    expected = written(tmp_path / "model", scheme)
    with Checkpoint(tmp_path / "model") as file:
        for module, weights in expected.items():
            layer, part = module.split(".")[2], NAMES[module.rpartition(".")[2]]
            heads = {"attn_q": 4, "attn_k": 2}.get(part)
            wanted = paired(weights, heads) if heads else weights
            np.testing.assert_array_equal(weights_of(file, f"blk.{layer}.{part}.weight"), wanted, module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method 'hqq'; supported: awq, gptq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'; supported: 4 bits, gemm"),
        ({"quant_method": "awq", "bits": 3}, "AWQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 5}, "GPTQ of 5 bits"),
        ({"quant_method": ["awq"]}, "supported: awq"),
        ("awq", "expected an object"),
        (None, "quantized, but config.json has no quantization_config"),
    ],
)  # fmt: skip
def test_a_quantization_that_is_not_known_is_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    written(tmp_path / "model", "awq")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": change}))
    with pytest.raises(UnsupportedModel, match=message):
        Checkpoint(tmp_path / "model")


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = others(random)
    for module, shape in matrices().items():
        parts, _ = awq(random, shape)
        tensors |= {module + part: stored for part, stored in parts.items()}
    tensors["model.layers.1.mlp.up_proj.qzeros"] = store("I32", np.zeros((3, 32)))
    write_folder(tmp_path / "model", tensors, LLAMA | named("awq", bits=4))
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp\.up_proj: 2 groups of scales and 3 of zeros for 128"):
        Checkpoint(tmp_path / "model")
