"""The codes of others by name: what ours is compared with, and what those get who ask for them."""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.cache.codecs.base import KVCodec
from edgeinfer.cache.codecs.floats import FP8, NVFP4
from edgeinfer.cache.codecs.groups import Q4_0, Q8_0, Affine
from edgeinfer.cache.codecs.polarquant import PolarQuant
from edgeinfer.cache.codecs.turboquant import TurboQuant, TurboQuantProduct

_BOTH: tuple[tuple[KVCodec, KVCodec], ...] = (
    (Q8_0("keys"), Q8_0("values")),
    (Affine(8, 64, "keys"), Affine(8, 64, "values")),
    (FP8("keys"), FP8("values")),
    (TurboQuant(5, "keys"), TurboQuant(5, "values")),
    (Affine(4, 32, "keys"), Affine(4, 32, "values")),
    (NVFP4("keys"), NVFP4("values")),
    (Q4_0("keys"), Q4_0("values")),
    (Affine(4, 64, "keys"), Affine(4, 64, "values")),
    (TurboQuantProduct(4, "keys"), TurboQuant(4, "values")),
    (TurboQuant(4, "keys"), TurboQuant(4, "values")),
    (PolarQuant("keys"), PolarQuant("values")),
    (TurboQuant(3, "keys", split=True), TurboQuant(3, "values", split=True)),
    (TurboQuantProduct(3, "keys"), TurboQuant(3, "values")),
    (TurboQuant(3, "keys"), TurboQuant(3, "values")),
    (TurboQuant(2, "keys", split=True), TurboQuant(2, "values", split=True)),
    (TurboQuant(2, "keys"), TurboQuant(2, "values")),
    (TurboQuant(1, "keys"), TurboQuant(1, "values")),
)
COMPARED: Mapping[str, tuple[KVCodec, KVCodec]] = {keys.name: (keys, values) for keys, values in _BOTH}
"""Name -> the codes of keys and of values, from the largest to the smallest. QJL estimates products: it is for keys."""
