"""The formats that keys and values are stored in, and which of them fits a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.cache.codecs.base import KVCodec
from edgeinfer.cache.codecs.compared import COMPARED
from edgeinfer.cache.codecs.uniform import Uniform
from edgeinfer.errors import BadRequest

if TYPE_CHECKING:
    from edgeinfer.cache.kv import KVShape
    from edgeinfer.cache.state import StateShape

AUTO = "auto"

_LARGE_BIAS = 8.0  # times the median of all layers
_SMALL_MODEL = 4_000_000_000  # parameters
_SMALL_HEAD = 64


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How the sealed pages of a layer are coded; without codecs nothing is sealed."""

    name: str
    keys: KVCodec | None
    values: KVCodec | None

    @property
    def exact(self) -> bool:
        return self.keys is None

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of keys and values in our own code, which has kernels; zeros for another one."""
        if isinstance(self.keys, Uniform) and isinstance(self.values, Uniform):
            return self.keys.bits, self.values.bits
        return 0, 0

    def row_bytes(self, head_size: int) -> int:
        """Bytes of a token and a kv head once sealed, key and value together."""
        if self.keys is None or self.values is None:
            return 4 * head_size
        return self.keys.row_bytes(head_size) + self.values.row_bytes(head_size)


EXACT = KVFormat("exact", None, None)


def _uniform(keys: int, values: int) -> KVFormat:
    return KVFormat(f"k{keys}v{values}", Uniform(keys, "keys"), Uniform(values, "values"))


_OURS = ((8, 8), (8, 4), (6, 4), (5, 4), (4, 4), (4, 3), (3, 3))
FORMATS: Mapping[str, KVFormat] = {
    form.name: form
    for form in (
        EXACT,
        *(_uniform(*widths) for widths in _OURS),
        *(KVFormat(name, *codecs) for name, codecs in COMPARED.items()),
    )
}
"""By name: our own, from the one that is largest and closest to the original to the smallest, then those of others."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A format for each layer, what it is called, and why it was chosen."""

    name: str
    layers: tuple[KVFormat, ...]
    reason: str


def policy(wanted: str, shapes: Sequence[KVShape | StateShape], parameters: int, key_bias: float = 0.0) -> Policy:
    """The formats of a model's layers. ``wanted``: a name of FORMATS, or ``auto``.

    ``key_bias``: the largest norm of a layer's key bias over the median one; 0 without biases. Layers that are not
    ``compressible`` stay as they are.
    Raises BadRequest for an unknown name.
    """
    name, reason = wanted, "asked for"
    if wanted == AUTO:
        name, reason = _chosen(shapes, parameters, key_bias)
    elif wanted not in FORMATS:
        near = difflib.get_close_matches(wanted, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected auto, {', '.join(FORMATS)}"
        raise BadRequest(f"kv={wanted!r:.40}: unknown format; {hint}", "kv")
    layers = tuple(FORMATS[name] if shape.compressible else EXACT for shape in shapes)
    if all(layer.exact for layer in layers) and name != EXACT.name:
        return Policy(EXACT.name, layers, "no layer sees the whole context without sinks of its own")
    return Policy(name, layers, reason)


def _chosen(shapes: Sequence[KVShape | StateShape], parameters: int, key_bias: float) -> tuple[str, str]:
    if key_bias > _LARGE_BIAS:
        return "k8v4", "keys at 8 bits: their biases are large"
    if parameters < _SMALL_MODEL:
        return "k8v4", "keys at 8 bits: the model has less than 4B parameters"
    if min((shape.head_dim for shape in shapes if shape.compressible), default=0) <= _SMALL_HEAD:
        return "k8v4", "keys at 8 bits: its heads are small"
    return "k6v4", "keys at 6 bits suffice for a model of this size"
