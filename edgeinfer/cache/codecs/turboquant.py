"""TurboQuant (Zandieh, Daliri, Hadian, Mirrokni, 2025, arXiv 2504.19874): a random rotation, then Lloyd–Max levels.

``TurboQuant`` is the paper's code of least mean square error, with its 2.5 and 3.5 bits of two widths.
``TurboQuantProduct`` gives one of the bits to the sign of a random projection of what is left (QJL, arXiv 2406.03482),
so that products with a query have no bias. Both keep the row's length in float16, which the paper does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.cache.codecs.base import Bytes, Floats, Role
from edgeinfer.cache.codecs.haar import gaussian, rotation
from edgeinfer.cache.codecs.lloydmax import sphere
from edgeinfer.cache.codecs.packing import bytes_to_halves, halves_to_bytes, pack, packed_bytes, unpack

_ROTATION_SEED, _PROJECTION_SEED = 2504, 19874  # apart: a projection along the rotation's axes would see nothing new
_RANGE = 16.0
"""Lengths are stored divided by this: 1e5 in every channel still has one that float16 holds."""


@dataclass(frozen=True, slots=True)
class TurboQuant:
    """``width`` bits a channel, 1 to 5. With ``split``, a quarter of the channels are a code of their own, of one bit
    more: with both lengths that is 2.5 and 3.5 bits for heads of 128.

    The paper gives the wider code to channels with outliers and leaves open how they are found. Here both take their
    channels after the rotation, where all are alike, so that no model has to be calibrated.
    """

    width: int
    role: Role = "keys"
    split: bool = False

    @property
    def name(self) -> str:
        return f"turboquant{self.bits:g}".replace(".25", ".5")

    @property
    def bits(self) -> float:
        return self.width + 0.25 * self.split

    def row_bytes(self, head: int) -> int:
        return sum(2 + packed_bytes(channels.stop - channels.start, bits) for channels, bits in self._parts(head))

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: a length and codes, twice where the row is split."""
        head, stored = rows.shape[1], []
        turned = rows @ rotation(head, _ROTATION_SEED).T
        for channels, bits in self._parts(head):
            part, scale = _normalized(turned[:, channels])
            stored += [halves_to_bytes(scale / np.float32(_RANGE)), pack(sphere(bits, head).nearest(part), bits)]
        return np.concatenate(stored, axis=1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """(n, row_bytes) uint8 -> (n, head) float32."""
        turned, start = np.empty((len(stored), head), np.float32), 0
        for channels, bits in self._parts(head):
            count = channels.stop - channels.start
            codes = start + 2
            scale = bytes_to_halves(stored[:, start:codes]) * np.float32(_RANGE)
            start = codes + packed_bytes(count, bits)
            turned[:, channels] = sphere(bits, head).levels[unpack(stored[:, codes:start], bits, count)] * scale
        return turned @ rotation(head, _ROTATION_SEED)

    def _parts(self, head: int) -> list[tuple[slice, int]]:
        """The rotated channels of each code, and its bits."""
        wide = head // 4 if self.split else 0
        parts = [(slice(0, wide), self.width + 1)] if wide else []
        return [*parts, (slice(wide, head), self.width)]


@dataclass(frozen=True, slots=True)
class TurboQuantProduct:
    """``width`` bits a channel, 2 to 5, the last of them the sign of a projection. For keys: made for products."""

    width: int
    role: Role = "keys"

    @property
    def name(self) -> str:
        return f"turboquant{self.width}-qjl"

    @property
    def bits(self) -> float:
        return self.width

    def row_bytes(self, head: int) -> int:
        return self._rough.row_bytes(head) + 2 + packed_bytes(head, 1)

    def encode(self, rows: Floats) -> Bytes:
        """(n, head) float32 -> (n, row_bytes) uint8: the rough code, the residual's length, the signs."""
        head = rows.shape[1]
        rough = self._rough.encode(rows)
        residual, scale = _normalized(rows - self._rough.decode(rough, head))
        signs = (residual @ gaussian(head, _PROJECTION_SEED).T >= 0).astype(np.uint8)
        return np.concatenate([rough, halves_to_bytes(scale / np.float32(_RANGE)), pack(signs, 1)], axis=1)

    def decode(self, stored: Bytes, head: int) -> Floats:
        """The row whose product with a query is the paper's estimate. (n, row_bytes) uint8 -> (n, head) float32."""
        start = self._rough.row_bytes(head)
        scale = bytes_to_halves(stored[:, start : start + 2]) * np.float32(_RANGE * np.sqrt(head))
        signs = 2 * unpack(stored[:, start + 2 :], 1, head).astype(np.float32) - 1
        residual = signs @ gaussian(head, _PROJECTION_SEED) * (scale * np.float32(np.sqrt(np.pi / 2) / head))
        return self._rough.decode(stored[:, :start], head) + residual

    @property
    def _rough(self) -> TurboQuant:
        return TurboQuant(self.width - 1, self.role)


def _normalized(rows: Floats) -> tuple[Floats, Floats]:
    """Rows over their root mean square, and that: (n, head), (n, 1). Rows of zeros stay."""
    scale: Floats = np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True))
    return np.divide(rows, np.where(scale > 0, scale, 1), dtype=np.float32), scale
