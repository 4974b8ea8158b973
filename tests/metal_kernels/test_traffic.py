"""The table of ``metal_kernels/README.md`` is what the emulator counts, and no byte of a matrix is read in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.metal_kernels import products
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.blocks import floats, matrix
from tests.metal_kernels.emulator import emulated
from tests.metal_kernels.traffic import rows

README = Path(__file__).parents[2] / "metal_kernels" / "README.md"


@pytest.mark.usefixtures("emulator_only")
def test_the_table_of_the_readme_is_what_the_emulator_counts() -> None:
    table = "\n".join(rows())
    assert table in README.read_text(), f"python -m tests.metal_kernels.traffic prints:\n{table}"


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("codec", ["q4_k", "q6_k", "mxfp4"])
def test_products_read_each_byte_of_the_matrix_once_for_a_tile_of_rows(codec: str) -> None:
    w = matrix(CODECS[codec], 37, 512)
    for count in (1, 8, 16, 17, 33, 64, 65, 130):
        with emulated() as metal:
            products.multiply(floats((count, 512)), w.array, w.codec)
        tiles = -(-count // products.TILES[-1])
        assert metal.reports[0].read["w"] == tiles * w.blocks.nbytes
