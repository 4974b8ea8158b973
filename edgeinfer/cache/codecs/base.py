"""What a code for keys or values has to offer."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]
Role: TypeAlias = Literal["keys", "values"]
"""Keys want an unbiased scale, since a score is linear in them; values want the one of least squares."""


class KVCodec(Protocol):
    """Stores the rows of one kv head, each by itself: one token's key or value of D numbers."""

    @property
    def name(self) -> str:
        """As in a format's name: ``uniform8``."""

    @property
    def role(self) -> Role: ...

    @property
    def bits(self) -> float:
        """Of a number, without its share of scales."""

    def row_bytes(self, head_size: int) -> int:
        """Bytes of one token and one kv head, scales and padding included."""

    def encode(self, rows: Floats) -> Bytes:
        """(n, D) float32 -> (n, row_bytes(D)) uint8."""

    def decode(self, packed: Bytes, head_size: int) -> Floats:
        """(n, row_bytes(D)) uint8 -> (n, D) float32."""
