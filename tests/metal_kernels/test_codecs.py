"""The codec headers, compiled for the host, against the ``gguf`` package or ggml: every weight bit for bit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.quant.codec import CODECS
from tests.oracle_ggml import decoded

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "metal_kernels" / "include"
DECODABLE = [codec for codec in CODECS.values() if codec.decodable]
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]


NONE = pytest.param("", marks=pytest.mark.skip(reason="no C++ compiler"))


@pytest.fixture(scope="module", params=COMPILERS or [NONE])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("codecs") / f"{request.param}.so"
    flags = ["-std=c++14", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [request.param, *flags, f"-I{INCLUDE}", str(HERE / "decode_blocks.cpp"), "-o", str(built)], check=True
    )
    return ctypes.CDLL(str(built))


@pytest.mark.parametrize("codec", DECODABLE, ids=lambda codec: codec.name)
def test_random_blocks_decode_to_the_bit(library: ctypes.CDLL, codec) -> None:  # random bytes: NaN scales among them
    blocks = np.random.default_rng(codec.ggml_id).integers(0, 256, (4000, codec.bytes), dtype=np.uint8)
    weights = np.empty((len(blocks), codec.weights), np.float32)
    decode = getattr(library, f"decode_{codec.name}")
    decode(blocks.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(len(blocks)), weights.ctypes.data_as(ctypes.c_void_p))
    expected = decoded(codec, blocks)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(weights), ~number)
    np.testing.assert_array_equal(weights[number].view(np.uint32), expected[number].view(np.uint32))


def test_every_decodable_codec_has_a_header() -> None:
    headers = {path.stem for path in (INCLUDE / "codecs").glob("*.h")} - {"base", "host", "all", "grids", "values"}
    assert headers == {"affine" if codec.family == "affine" else codec.name for codec in DECODABLE}
