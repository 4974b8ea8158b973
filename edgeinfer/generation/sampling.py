"""Choosing a token from a row of logits: filters in a fixed order, then one draw keyed by seed and position.

Everything here is written in the names that numpy and ``mlx.core`` share; ``xp`` is either of them, so one text serves
host and device, and nothing forces a lazy array to be computed. A filter masks what it drops with -inf and keeps its
shape. The filters mean what llama.cpp's samplers of the same names mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from edgeinfer.types import SamplingParams

Array: TypeAlias = Any
"""A numpy or an mlx array; ``logits`` are float32, (n,)."""

_MASK = 2**64 - 1
_LARGEST_UNIFORM = 1 - 2**-23  # the largest u for which u * total < total in float32
_LEAST = 1e-30  # a probability that dropped tokens do not reach
_BLOCK = 64


class Purpose(IntEnum):
    """What a random number is for; each has a stream of its own."""

    TOKEN = 0
    XTC = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4


def uniform(seed: int, position: int, purpose: Purpose = Purpose.TOKEN) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: splitmix64 (Steele, Lea, Flood 2014) as a hash."""
    value = seed
    for word in (position, purpose):
        value = _mix((value + 0x9E3779B97F4A7C15 * (word + 1)) & _MASK)
    return min((value >> 11) * 2.0**-53, _LARGEST_UNIFORM)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def softmax(xp: Any, logits: Array) -> Array:
    weights = xp.exp(logits - xp.max(logits))
    return weights / xp.sum(weights)


def top_n_sigma(xp: Any, logits: Array, n: float) -> Array:
    """Keeps what lies within ``n`` standard deviations of the best logit (Tang et al. 2024)."""
    alive = logits > -math.inf
    count = xp.sum(alive.astype(xp.float32))
    mean = xp.sum(xp.where(alive, logits, 0.0)) / count
    deviations = xp.where(alive, logits - mean, 0.0)
    sigma = xp.sqrt(xp.sum(deviations * deviations) / count)
    return xp.where(logits >= xp.max(logits) - n * sigma, logits, -math.inf)


def top_k(xp: Any, logits: Array, k: int) -> tuple[Array, Array]:
    """The ``k`` best logits, best first, and their ids: two arrays of (k,). ``k`` = 0 sorts the whole row.

    The best k of a row lie in the k blocks with the best maxima, so most of the row is read only once.
    """
    size = logits.shape[0]
    if not 0 < k < size:
        order = xp.argsort(-logits)
        return logits[order], order
    if size % _BLOCK == 0 and k * _BLOCK * 4 <= size:
        maxima = xp.max(logits.reshape(-1, _BLOCK), axis=1)
        blocks = xp.argpartition(-maxima, k - 1)[:k]
        inside = (blocks[:, None] * _BLOCK + xp.arange(_BLOCK)[None, :]).reshape(-1)
        ids = inside[xp.argpartition(-logits[inside], k - 1)[:k]]
    else:
        ids = xp.argpartition(-logits, k - 1)[:k]
    ids = ids[xp.argsort(-logits[ids])]
    return logits[ids], ids


def typical_p(xp: Any, logits: Array, p: float) -> Array:
    """Keeps the tokens whose surprise is nearest the expected one, up to mass ``p`` (Meister et al. 2023)."""
    probabilities = softmax(xp, logits)
    alive = probabilities > 0
    surprise = -xp.log(xp.where(alive, probabilities, 1.0))
    entropy = xp.sum(probabilities * surprise)
    order = xp.argsort(xp.where(alive, xp.abs(surprise - entropy), math.inf))
    kept = _mass_before(xp, probabilities[order]) <= p
    return xp.where(kept[xp.argsort(order)], logits, -math.inf)


def top_p(xp: Any, logits: Array, p: float) -> Array:
    """Keeps the fewest best tokens with mass ``p`` or more (Holtzman et al. 2020). ``logits``: best first."""
    kept = _mass_before(xp, softmax(xp, logits)) < max(p, _LEAST)
    return xp.where(kept, logits, -math.inf)


def min_p(xp: Any, logits: Array, p: float) -> Array:
    """Keeps the tokens at least ``p`` times as likely as the best (Nguyen et al. 2024)."""
    return xp.where(logits >= xp.max(logits) + math.log(p), logits, -math.inf)


def xtc(xp: Any, logits: Array, threshold: float) -> Array:
    """Of the tokens with probability ``threshold`` or more keeps the least likely alone. ``logits``: best first."""
    places = xp.arange(logits.shape[0])
    last = xp.max(xp.where(softmax(xp, logits) >= max(threshold, _LEAST), places, 0))
    return xp.where(places >= last, logits, -math.inf)


def _mass_before(xp: Any, probabilities: Array) -> Array:
    return xp.concatenate([xp.zeros_like(probabilities[:1]), xp.cumsum(probabilities)[:-1]])


def draw(xp: Any, logits: Array, u: float) -> Array:
    """The place in ``logits`` (best first) that ``u`` falls on, by inverse CDF.

    The sum runs from the least likely token up, so that no small term is lost in a large sum.
    """
    mass = xp.cumsum(softmax(xp, logits)[::-1])
    return logits.shape[0] - 1 - xp.sum(mass <= u * mass[-1])


Filter: TypeAlias = Callable[[Any, Array], Array]


def filters(params: SamplingParams, seed: int, position: int) -> list[Filter]:
    """The filters after top-k that ``params`` turn on, in their order; each takes (xp, logits best first)."""
    table: tuple[tuple[bool, Callable[[Any, Array, float], Array], float], ...] = (
        (params.typical_p < 1, typical_p, params.typical_p),
        (params.top_p < 1, top_p, params.top_p),
        (params.min_p > 0, min_p, params.min_p),
        (crosses(params, seed, position), xtc, params.xtc_threshold),
    )
    return [_bound(function, value) for on, function, value in table if on]


def crosses(params: SamplingParams, seed: int, position: int) -> bool:
    """Whether ``xtc`` applies at this position."""
    chance = params.xtc_probability
    return chance > 0 and params.xtc_threshold <= 0.5 and uniform(seed, position, Purpose.XTC) <= chance


def _bound(function: Callable[[Any, Array, float], Array], value: float) -> Filter:
    return lambda xp, logits: function(xp, logits, value)


def candidates(xp: Any, logits: Array, params: SamplingParams, seed: int, position: int) -> tuple[Array, Array]:
    """The logits that all filters leave, tempered and best first, and their ids. Dropped ones are -inf."""
    if params.top_n_sigma > 0:
        logits = top_n_sigma(xp, logits, params.top_n_sigma)
    best, ids = top_k(xp, logits, params.top_k)
    for apply in filters(params, seed, position):
        best = apply(xp, best)
    return best / params.temperature, ids


def distribution(logits: Array, params: SamplingParams, seed: int, position: int) -> Array:
    """What ``choose`` draws from: chances (V,) float32, of a row of logits in numpy."""
    best, ids = candidates(np, logits, params, seed, position)
    chances = np.zeros(logits.shape[0], np.float32)
    chances[ids] = softmax(np, best)
    return chances


def choose(xp: Any, logits: Array, params: SamplingParams, seed: int, position: int) -> Array:
    """The next token, (1,), from a row of logits after bias and penalties; -1 where the logits are not finite."""
    if params.greedy:
        token = xp.argmax(logits)
    else:
        best, ids = candidates(xp, logits, params, seed, position)
        token = ids[draw(xp, best, uniform(seed, position))]
    return xp.where(xp.isfinite(xp.max(logits)), token.astype(xp.int32), -1).reshape(1)


def mirostat(
    xp: Any, logits: Array, params: SamplingParams, seed: int, position: int, limit: float
) -> tuple[Array, Array]:
    """The next token, and its surprise in bits, among those less surprising than ``limit`` (Basu et al. 2021, v2)."""
    if params.top_n_sigma > 0:
        logits = top_n_sigma(xp, logits, params.top_n_sigma)
    tempered = logits / params.temperature
    kept = xp.sum(softmax(xp, tempered) >= 2.0**-limit)
    best, ids = top_k(xp, tempered, max(1, int(kept)))
    place = draw(xp, best, uniform(seed, position))
    return ids[place], -xp.log2(softmax(xp, best)[place])
