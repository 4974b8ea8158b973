"""What llama.cpp asserts instead of reporting: settings that would end the process are refused before it sees them."""

from __future__ import annotations

import math

from edgeinfer.errors import BadRequest
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile

_MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
_SCALINGS = ("none", "linear", "yarn", "longrope")
_EPSILONS = ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon")


FLOAT16 = 1  # GGML_TYPE_F16
KV_TYPES = {"auto": FLOAT16, "exact": FLOAT16, "q8_0": 8, "q4_0": 2}
"""Formats of keys and values, in the numbers that ggml gives its types."""
KV_SHARE = {8: 34 / 64, 2: 18 / 64}
"""Their bytes against float16's."""


def kv_type(name: str) -> int:
    """The ggml type for a format of keys and values. Raises BadRequest for one that llama.cpp has not."""
    if name not in KV_TYPES:
        raise BadRequest(f"kv={name!r:.40}: llama.cpp has no such format; expected {', '.join(KV_TYPES)}", "kv")
    return KV_TYPES[name]


def check_settings(file: GGUFFile) -> None:
    """Raises CorruptFile or UnsupportedModel for a setting that no architecture can have."""
    architecture = str(file.metadata.get("general.architecture", ""))  # llama.cpp says itself whether it knows it
    config = Config(file.metadata, architecture, file.path, file.field_offset)
    for full, value in file.metadata.items():
        before, own, key = full.partition(f"{architecture}.")
        numbers = value if isinstance(value, list) else [value]
        if own and not before and any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise config.error(key, "not a finite number")
    config.read("block_count", int, None, maximum=_MOST_LAYERS)
    config.read("context_length", int, None)
    for name in _EPSILONS:
        config.read(f"attention.{name}", float, None, minimum=0)
    config.read("rope.freq_base", float, None, minimum=1)
    config.expect("rope.scaling.type", *_SCALINGS, None)
    for key in ("rope.dimension_count", "attention.key_length"):
        if (config.read(key, int, None, minimum=0) or 0) % 2:
            raise config.error(key, "an odd number of channels; expected an even one")
