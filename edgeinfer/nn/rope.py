"""Rotary embeddings from a model's settings: plain, linear, YaRN, and per-channel factors (Llama 3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats.config import Config
from edgeinfer.nn.tensors import Tensors
from edgeinfer.ops import Rotary

SCALINGS = ("none", "linear", "yarn")
YARN = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0}
"""Published values; llama.cpp keeps to them for these architectures whatever the file says."""


def rotary(config: Config, tensors: Tensors, head_dim: int, *, interleaved: bool = False) -> Rotary:
    """The rotary embedding that ``rope.*`` keys and, where the file has it, ``rope_freqs.weight`` describe.

    Raises UnsupportedModel for a scaling other than those of ``SCALINGS``.
    """
    base = config.read("rope.freq_base", float, 10000.0, minimum=2)
    config.expect("rope.dimension_count", head_dim, None)
    frequencies = base_frequencies(base, head_dim)
    if "rope_freqs.weight" in tensors:
        frequencies /= np.asarray(tensors.vector("rope_freqs.weight", head_dim // 2), np.float64)
    config.expect("rope.scaling.type", *SCALINGS, None)
    kind = config.read("rope.scaling.type", str, "linear")
    original = config.read("rope.scaling.original_context_length", int, config.read("context_length", int), minimum=1)
    older = config.read("rope.scale_linear", float, 1.0, minimum=0)
    factor = config.read("rope.scaling.factor", float, older, minimum=0) or 1.0
    magnitude = config.read("rope.scaling.attn_factor", float, 1.0, minimum=0)
    if kind == "linear":
        frequencies /= factor
    elif kind == "yarn":
        for key, only in YARN.items():
            config.expect(f"rope.scaling.{key}", only, None)
        frequencies = _yarn(frequencies, base, factor, original)
        magnitude *= 1 + 0.1 * math.log(max(factor, 1))
    return Rotary(frequencies, interleaved, magnitude)


def plain_rotary(base: float, dims: int) -> Rotary:
    """Unscaled, over a whole head of ``dims`` channels."""
    return Rotary(base_frequencies(base, dims), interleaved=False)


def base_frequencies(base: float, dims: int) -> NDArray[np.float64]:
    """base^(-2i / dims) for each pair i: (dims / 2,)."""
    return np.float64(base) ** (-np.arange(0, dims, 2) / dims)


def _yarn(frequencies: NDArray[np.float64], base: float, factor: float, original: int) -> NDArray[np.float64]:
    """Slow pairs are slowed by ``factor``, quick ones kept, with a ramp between (Peng et al., 2023, section 3.2)."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """The pair that makes so many turns over the original context."""
        return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    first = max(0, math.floor(pair_of(YARN["yarn_beta_fast"])))
    last = min(2 * pairs - 1, math.ceil(pair_of(YARN["yarn_beta_slow"])))
    ramp = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp
