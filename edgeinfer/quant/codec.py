"""What a stored weight is: one row a block format, in the numbers of ggml, and from 1,000 on in our own.

``family`` names the module of this folder that decodes the format; without one the format is known by name and size
(so that a file can be read and shown) but its weights cannot be decoded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    ggml_id: int
    weights: int  # per block
    bytes: int  # per block, as stored in the file
    family: str = ""

    @property
    def bits(self) -> float:
        """Stored bits a weight."""
        return 8 * self.bytes / self.weights

    @property
    def decodable(self) -> bool:
        return bool(self.family)


_ROWS = (
    Codec("f32", 0, 1, 4, "plain"),
    Codec("f16", 1, 1, 2, "plain"),
    Codec("q4_0", 2, 32, 18, "legacy"),
    Codec("q4_1", 3, 32, 20, "legacy"),
    Codec("q5_0", 6, 32, 22, "legacy"),
    Codec("q5_1", 7, 32, 24, "legacy"),
    Codec("q8_0", 8, 32, 34, "legacy"),
    Codec("q8_1", 9, 32, 36),
    Codec("q2_k", 10, 256, 84, "kquants"),
    Codec("q3_k", 11, 256, 110, "kquants"),
    Codec("q4_k", 12, 256, 144, "kquants"),
    Codec("q5_k", 13, 256, 176, "kquants"),
    Codec("q6_k", 14, 256, 210, "kquants"),
    Codec("q8_k", 15, 256, 292),
    Codec("iq2_xxs", 16, 256, 66, "grids"),
    Codec("iq2_xs", 17, 256, 74, "grids"),
    Codec("iq3_xxs", 18, 256, 98, "grids"),
    Codec("iq1_s", 19, 256, 50, "grids"),
    Codec("iq4_nl", 20, 32, 18, "codebooks"),
    Codec("iq3_s", 21, 256, 110, "grids"),
    Codec("iq2_s", 22, 256, 82, "grids"),
    Codec("iq4_xs", 23, 256, 136, "codebooks"),
    Codec("i8", 24, 1, 1),
    Codec("i16", 25, 1, 2),
    Codec("i32", 26, 1, 4),
    Codec("i64", 27, 1, 8),
    Codec("f64", 28, 1, 8),
    Codec("iq1_m", 29, 256, 56, "grids"),
    Codec("bf16", 30, 1, 2, "plain"),
    Codec("tq1_0", 34, 256, 54, "ternary"),
    Codec("tq2_0", 35, 256, 66, "ternary"),
    Codec("mxfp4", 39, 32, 17, "codebooks"),
    Codec("nvfp4", 40, 64, 36, "codebooks"),
    Codec("q1_0", 41, 128, 18, "ternary"),
    Codec("q2_0", 42, 64, 18, "ternary"),
)
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
_AFFINE = tuple(
    Codec(f"affine{bits}_{group}", 1000 + 10 * bits + place, group, 8 + group * bits // 8, "affine")
    for bits in AFFINE_BITS
    for place, group in enumerate(AFFINE_GROUPS)
)
"""What converted weights become (MLX, AWQ, GPTQ …): float32 scale and offset, then a group's q as one bit string."""
CODECS: dict[str, Codec] = {row.name: row for row in (*_ROWS, *_AFFINE)}
BY_GGML_ID: dict[int, Codec] = {row.ggml_id: row for row in _ROWS}
"""Those that a GGUF file may hold."""


def decode(codec: Codec, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Weights of stored blocks. blocks: (..., n * codec.bytes) uint8 -> (..., n * codec.weights) float32."""
    import numpy as np

    if not codec.family:
        raise ValueError(f"no decoder for {codec.name}")
    if blocks.shape[-1] % codec.bytes:
        raise ValueError(f"{blocks.shape[-1]} bytes are no whole number of {codec.name} blocks")
    function = getattr(import_module(f"edgeinfer.quant.{codec.family}"), f"decode_{codec.name}")
    flat = np.ascontiguousarray(blocks).reshape(-1, codec.bytes)
    with np.errstate(all="ignore"):  # a stored scale may be infinite or no number
        weights: NDArray[np.float32] = function(flat)
    return weights.reshape(*blocks.shape[:-1], -1)
