"""Blocks as the libraries of others decode them; ggml is asked through the table of types that it exports."""

from __future__ import annotations

import ctypes

import gguf
import mlx.core as mx
import numpy as np
from llama_cpp._ggml import libggml

from edgeinfer.quant.codec import Codec


class _Traits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


_Convert = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def decoded(codec: Codec, blocks: np.ndarray) -> np.ndarray:
    """What the ``gguf`` package makes of blocks; ggml, where the package has no decoder; MLX, of formats of our own."""
    if codec.family == "affine":
        return _affine(codec, blocks)
    with np.errstate(all="ignore"):
        try:
            return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(codec.ggml_id))
        except (NotImplementedError, ValueError):
            return ggml_decode(codec.ggml_id, blocks)


def _affine(codec: Codec, blocks: np.ndarray) -> np.ndarray:
    """By ``mx.dequantize``, whose inputs are the parts of a block."""
    parts = np.ascontiguousarray(blocks).reshape(-1, codec.bytes)
    numbers = np.ascontiguousarray(parts[:, :8]).view("<f4")
    words = np.ascontiguousarray(parts[:, 8:]).view("<u4")
    bits = 32 * words.shape[1] // codec.weights
    scales, offsets = mx.array(numbers[:, :1]), mx.array(numbers[:, 1:])
    weights = mx.dequantize(mx.array(words), scales, offsets, group_size=codec.weights, bits=bits)
    return np.array(weights).reshape(*blocks.shape[:-1], -1)


def ggml_decode(ggml_id: int, blocks: np.ndarray) -> np.ndarray:
    """(..., n * bytes) uint8 -> (..., n * weights) float32."""
    traits = _traits(ggml_id)
    source = np.ascontiguousarray(blocks)
    weights = np.empty((*blocks.shape[:-1], blocks.shape[-1] // traits.type_size * traits.blck_size), np.float32)
    _Convert(traits.to_float)(source.ctypes.data, weights.ctypes.data, weights.size)
    return weights


def ggml_encode(ggml_id: int, weights: np.ndarray) -> np.ndarray:
    """(..., K) float32 -> blocks, by the plain encoder of a format that has one."""
    traits = _traits(ggml_id)
    source = np.ascontiguousarray(weights, np.float32)
    blocks = np.empty((*weights.shape[:-1], weights.shape[-1] // traits.blck_size * traits.type_size), np.uint8)
    _Convert(traits.from_float_ref)(source.ctypes.data, blocks.ctypes.data, source.size)
    return blocks


def _traits(ggml_id: int) -> _Traits:
    libggml.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    traits: _Traits = libggml.ggml_get_type_traits(ggml_id).contents
    return traits
