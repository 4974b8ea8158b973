"""What llama.cpp asserts instead of reporting: settings that would end the process are refused before it sees them."""

from __future__ import annotations

import math

from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile

_MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
_SCALINGS = ("none", "linear", "yarn", "longrope")
_EPSILONS = ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon")


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
