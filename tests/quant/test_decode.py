"""Every decoder against the ``gguf`` package and, but for the plain formats, ggml itself, bit for bit."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from edgeinfer.formats.gguf import open_gguf
from edgeinfer.quant.codec import BY_GGML_ID, CODECS, Codec, decode
from tests.oracle_ggml import decoded, ggml_decode
from tests.tiny import random_blocks

DECODABLE = [codec for codec in CODECS.values() if codec.decodable]
SPECIAL_HALVES = np.array(
    # zeros, subnormals, one, the largest, infinities, quiet and signalling NaNs
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF],
    "<u2",
)
HALVES = {  # where each format keeps its float16 numbers
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,),
    "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    "iq2_xxs": (0,), "iq2_xs": (0,), "iq2_s": (0,), "iq3_xxs": (0,), "iq3_s": (0,), "iq1_s": (0,), "iq4_nl": (0,),
    "iq4_xs": (0,), "tq1_0": (52,), "tq2_0": (64,), "q1_0": (0,), "q2_0": (0,),
}  # fmt: skip


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), ~numbers)
    np.testing.assert_array_equal(ours.view(np.uint32)[numbers], theirs.view(np.uint32)[numbers])


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_random_blocks_decode_bit_for_bit(codec: Codec) -> None:
    blocks = np.random.default_rng(codec.ggml_id).integers(0, 256, (4096, codec.bytes), np.uint8)
    if codec.family == "affine":  # MLX rounds once where the sizes of its terms are far apart
        blocks = random_blocks(codec, 64, 64 * codec.weights, np.random.default_rng(codec.ggml_id))
    assert_same_bits(decode(codec, blocks), decoded(codec, blocks))
    if codec.family not in ("plain", "affine"):
        assert_same_bits(decode(codec, blocks), ggml_decode(codec.ggml_id, blocks))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_every_shared_exponent_decodes_bit_for_bit(name: str) -> None:
    codec = CODECS[name]
    blocks = np.random.default_rng(5).integers(0, 256, (256, codec.bytes), np.uint8)
    blocks[:, 0] = np.arange(256)
    assert_same_bits(decode(codec, blocks), ggml_decode(codec.ggml_id, blocks))


@pytest.mark.parametrize("name", HALVES)
def test_every_kind_of_scale_decodes_bit_for_bit(name: str) -> None:
    codec = CODECS[name]
    rng = np.random.default_rng(7)
    pairs = np.stack(np.meshgrid(SPECIAL_HALVES, SPECIAL_HALVES), axis=-1).reshape(-1, 2)
    blocks = rng.integers(0, 256, (len(pairs), codec.bytes), np.uint8)
    for column, at in enumerate(HALVES[name]):
        blocks[:, at : at + 2] = pairs[:, column : column + 1].view(np.uint8)
    assert_same_bits(decode(codec, blocks), decoded(codec, blocks))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_all_sixteen_bit_patterns_decode_bit_for_bit(name: str) -> None:
    blocks = np.arange(65536, dtype="<u2").view(np.uint8).reshape(256, 512)
    assert_same_bits(decode(CODECS[name], blocks), decoded(CODECS[name], blocks))


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_leading_axes_are_kept_and_rows_may_be_strided(codec: Codec) -> None:
    blocks = np.random.default_rng(3).integers(0, 256, (2, 6, 4 * codec.bytes), np.uint8)
    assert decode(codec, blocks).shape == (2, 6, 4 * codec.weights)
    assert_same_bits(decode(codec, blocks[:, ::2]), decoded(codec, np.ascontiguousarray(blocks[:, ::2])))


def test_a_format_without_a_decoder_is_named() -> None:
    with pytest.raises(ValueError, match="no decoder for q8_1"):
        decode(CODECS["q8_1"], np.zeros((1, 36), np.uint8))


def test_a_part_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="35 bytes are no whole number of q8_0 blocks"):
        decode(CODECS["q8_0"], np.zeros((1, 35), np.uint8))


def test_names_and_sizes_are_those_of_ggml() -> None:
    """Asked of the library that llama.cpp is built on; removed formats have no size there and no row here."""
    ggml = llama_cpp.llama_cpp._lib
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    theirs = {
        number: (ggml.ggml_type_name(number).decode().lower(), ggml.ggml_blck_size(number), ggml.ggml_type_size(number))
        for number in range(max(BY_GGML_ID) + 1)
        if ggml.ggml_type_size(number)
    }
    assert theirs == {number: (row.name, row.weights, row.bytes) for number, row in BY_GGML_ID.items()}


@pytest.mark.real_model
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path"])
def test_real_models_decode_bit_for_bit(fixture: str, request: pytest.FixtureRequest) -> None:
    """Every block of every tensor, some rows at a time."""
    path: Path = request.getfixturevalue(fixture)
    with open_gguf(path) as file:
        for name, info in file.tensors.items():
            blocks = file.blocks(name)
            for start in range(0, len(blocks), 4096):
                part = blocks[start : start + 4096]
                assert_same_bits(decode(info.codec, part), decoded(info.codec, part))
