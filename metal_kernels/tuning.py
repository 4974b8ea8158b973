"""Tile sizes by family of GPU. None of them was measured by us: see README.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

ROW_TILES = (1, 2, 4, 8, 16)
"""Rows of x that a kernel is compiled for; a call takes the next larger one."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """``outputs`` rows of the matrix a simdgroup, ``simdgroups`` a threadgroup; up to ``small_rows`` rows of x take the
    kernel that reads the matrix once for each 16 of them, more take tiles. From ``dense_rows`` on the tiles would
    unpack each weight so often that it is decoded to float16 once, for MLX's dense product."""

    outputs: int
    simdgroups: int
    small_rows: int
    dense_rows: int = 512


DEFAULT = Tuning(outputs=4, simdgroups=2, small_rows=16)
BY_GENERATION = {
    13: Tuning(outputs=4, simdgroups=2, small_rows=10),  # M1: where MLX's own dispatch changes over
    14: Tuning(outputs=4, simdgroups=2, small_rows=10),  # M2
}
"""Apple GPU generation (the number in ``applegpu_g13g``) -> tiles; others take ``DEFAULT``."""


def outputs_for(tuning: Tuning, rows: int) -> int:
    """Rows of the matrix a simdgroup takes: fewer where many rows of x fill the registers."""
    return tuning.outputs if rows <= 8 else max(1, tuning.outputs // 2)


def tuning_for(architecture: str) -> Tuning:
    """The row of a GPU by the name that Metal gives its architecture."""
    found = re.fullmatch(r"applegpu_g(\d+)\w", architecture)
    return BY_GENERATION.get(int(found[1]), DEFAULT) if found else DEFAULT


@cache
def tuning() -> Tuning:
    """The row of this machine's GPU; the default where there is none."""
    if not mx.metal.is_available():
        return DEFAULT
    return tuning_for(str(mx.device_info()["architecture"]))
