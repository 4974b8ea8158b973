"""Rotary embeddings from a model's settings: plain, linear, YaRN, LongRoPE, and per-channel factors (Llama 3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.formats.config import Config
from edgeinfer.nn.tensors import Tensors
from edgeinfer.ops import Rotary

SCALINGS = ("none", "linear", "yarn")
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
YARN = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0}
"""Published values; llama.cpp keeps to them for most architectures whatever the file says."""
BETAS = ("yarn_beta_fast", "yarn_beta_slow")


def rotary(
    config: Config,
    tensors: Tensors,
    dims: int,
    *,
    interleaved: bool = False,
    long: bool = False,
    betas: bool = False,
    all_dims: float = 0.0,
) -> Rotary:
    """The rotary embedding of the first ``dims`` channels, as ``rope.*`` keys and tensors with factors describe it.

    ``long``: the factors may be LongRoPE's. ``betas``: YaRN's may be set. ``all_dims``: YaRN's ``mscale_all_dim``, for
    which its magnitude is less. Raises UnsupportedModel for a scaling other than those of ``SCALINGS``.
    """
    base = config.read("rope.freq_base", float, 10000.0, minimum=2)
    config.expect("rope.dimension_count", dims, None)
    frequencies = base_frequencies(base, dims)
    if "rope_freqs.weight" in tensors:
        frequencies /= np.asarray(tensors.vector("rope_freqs.weight", dims // 2), np.float64)
    config.expect("rope.scaling.type", *SCALINGS, "longrope" if long else None, None)
    kind = config.read("rope.scaling.type", str, "linear")
    original = config.read("rope.scaling.original_context_length", int, config.read("context_length", int), minimum=1)
    older = config.read("rope.scale_linear", float, 1.0, minimum=0)
    factor = config.read("rope.scaling.factor", float, older, minimum=0) or 1.0
    magnitude = config.read("rope.scaling.attn_factor", float, 1.0, minimum=0)
    if kind == "longrope" or (long and LONG in tensors):
        frequencies /= _long_factors(config, tensors, dims, original)
    if kind in ("linear", "longrope"):
        frequencies /= factor
    elif kind == "yarn":
        found = {key: _yarn_setting(config, key, betas and key in BETAS) for key in YARN}
        frequencies = _yarn(frequencies, base, factor, original, *(found[key] for key in BETAS))
        magnitude *= yarn_magnitude(factor) / yarn_magnitude(factor, all_dims)
    return Rotary(frequencies, interleaved, magnitude)


def plain_rotary(base: float, dims: int) -> Rotary:
    """Unscaled, over a whole head of ``dims`` channels."""
    return Rotary(base_frequencies(base, dims), interleaved=False)


def still_rotary(dims: int) -> Rotary:
    """Of layers without positions: every pair stands still."""
    return Rotary(np.zeros(dims // 2), interleaved=False)


def base_frequencies(base: float, dims: int) -> NDArray[np.float64]:
    """base^(-2i / dims) for each pair i: (dims / 2,)."""
    return np.float64(base) ** (-np.arange(0, dims, 2) / dims)


def yarn_magnitude(factor: float, share: float = 1.0) -> float:
    """What YaRN multiplies rotated channels by: 1 + 0.1 ln(factor), or with a share of that logarithm."""
    return 1 + 0.1 * share * math.log(max(factor, 1))


def _yarn_setting(config: Config, key: str, free: bool) -> float:
    full = f"rope.scaling.{key}"
    if not free:
        config.expect(full, YARN[key], None)
    return config.read(full, float, YARN[key], minimum=1e-3)


def _long_factors(config: Config, tensors: Tensors, dims: int, original: int) -> NDArray[np.float64]:
    """One set for contexts of the original length, another for longer ones (Ding et al., 2024).

    As in llama.cpp, the context that the model was loaded with decides, so that what is cached stays valid.
    """
    short, long = (np.asarray(tensors.vector(name, dims // 2), np.float64) for name in (SHORT, LONG))
    context = config.context or config.read("context_length", int)
    return long if context > original else short


def _yarn(
    frequencies: NDArray[np.float64], base: float, factor: float, original: float, fast: float, slow: float
) -> NDArray[np.float64]:
    """Slow pairs are slowed by ``factor``, quick ones kept, with a ramp between (Peng et al., 2023, section 3.2)."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """The pair that makes so many turns over the original context."""
        return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    first = max(0, math.floor(pair_of(fast)))
    last = min(2 * pairs - 1, math.ceil(pair_of(slow)))
    ramp = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp
