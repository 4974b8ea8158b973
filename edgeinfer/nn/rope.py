"""Rotary embeddings from a model's settings: plain, linear, YaRN, and per-channel factors (Llama 3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats.config import Config
from edgeinfer.nn.tensors import Tensors
from edgeinfer.ops import Rotary

SCALINGS = ("none", "linear", "yarn")


def rotary(config: Config, tensors: Tensors, head_dim: int, *, interleaved: bool = False) -> Rotary:
    """The rotary embedding that ``rope.*`` keys and, where the file has it, ``rope_freqs.weight`` describe.

    Raises UnsupportedModel for a scaling other than those of ``SCALINGS``.
    """
    base = config.read("rope.freq_base", float, 10000.0)
    dims = config.read("rope.dimension_count", int, head_dim)
    if dims % 2 or dims > head_dim:
        raise config.error("rope.dimension_count", f"{dims}; expected an even number up to {head_dim}")
    frequencies = base_frequencies(base, dims)
    if "rope_freqs.weight" in tensors:
        frequencies /= np.asarray(tensors.vector("rope_freqs.weight", dims // 2), np.float64)
    config.expect("rope.scaling.type", *SCALINGS, None)
    kind = config.read("rope.scaling.type", str, "linear")
    factor = config.read("rope.scaling.factor", float, config.read("rope.scale_linear", float, 1.0)) or 1.0
    magnitude = config.read("rope.scaling.attn_factor", float, 1.0)
    if kind == "linear":
        frequencies /= factor
    elif kind == "yarn":
        frequencies = _yarn(config, frequencies, base, factor)
        magnitude *= config.read("rope.scaling.yarn_attn_factor", float, 1.0) * (1 + 0.1 * math.log(max(factor, 1)))
    return Rotary(frequencies, interleaved, magnitude)


def plain_rotary(base: float, dims: int) -> Rotary:
    """Unscaled, over a whole head of ``dims`` channels."""
    return Rotary(base_frequencies(base, dims), interleaved=False)


def base_frequencies(base: float, dims: int) -> NDArray[np.float64]:
    """base^(-2i / dims) for each pair i: (dims / 2,)."""
    return np.float64(base) ** (-np.arange(0, dims, 2) / dims)


def _yarn(config: Config, frequencies: NDArray[np.float64], base: float, factor: float) -> NDArray[np.float64]:
    """Slow pairs are slowed by ``factor``, quick ones kept, with a ramp between (Peng et al., 2023, section 3.2)."""
    pairs = len(frequencies)
    original = config.read("rope.scaling.original_context_length", int, config.read("context_length", int), minimum=1)
    mix = config.read("rope.scaling.yarn_ext_factor", float, 1.0)

    def pair_of(turns: float) -> float:
        """The pair that makes so many turns over the original context."""
        return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    first = max(0, math.floor(pair_of(config.read("rope.scaling.yarn_beta_fast", float, 32.0))))
    last = min(2 * pairs - 1, math.ceil(pair_of(config.read("rope.scaling.yarn_beta_slow", float, 1.0))))
    ramp = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
    kept = mix * (1 - ramp)
    return frequencies * kept + frequencies / factor * (1 - kept)
