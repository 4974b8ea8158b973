"""What logits say: how likely the text was, and how far two distributions are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]


def log_softmax(logits: Floats) -> Floats:
    """Natural logarithms of probabilities. (R, V) -> (R, V); sums in float64."""
    shifted: Floats = logits - logits.max(axis=1, keepdims=True)
    totals = np.sum(np.exp(shifted), axis=1, keepdims=True, dtype=np.float64)
    shifted -= np.log(totals).astype(np.float32)
    return shifted


def likelihood(logits: Floats, targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-ln p of each target. (R, V), (R,) -> (R,)."""
    peak = logits.max(axis=1)
    totals = np.sum(np.exp(logits - peak[:, None]), axis=1, dtype=np.float64)
    nll: NDArray[np.float64] = np.log(totals) + peak - logits[np.arange(len(targets)), targets]
    return nll


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean of -ln p, as llama-perplexity has it, with one standard error, over so many scored tokens."""

    ppl: float
    error: float
    tokens: int

    @classmethod
    def of(cls, nll: NDArray[np.float64]) -> Perplexity:
        """From -ln p of every scored token."""
        mean = float(nll.mean())
        spread = float(nll.std(ddof=1)) / math.sqrt(len(nll)) if len(nll) > 1 else 0.0
        return cls(math.exp(mean), math.exp(mean) * spread, len(nll))


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far one distribution over the next token is from another, over all scored places.

    KL(reference || other) in nats: its mean with one standard error, median and 99.9 % quantile. top: the share of
    places where both have the same best token. ppl_ratio: of perplexities.
    """

    mean: float
    error: float
    median: float
    p999: float
    top: float
    reference_ppl: float
    ppl: float
    tokens: int

    @property
    def flips(self) -> float:
        """The share of places whose best token changed."""
        return 1 - self.top

    @property
    def ppl_ratio(self) -> float:
        return self.ppl / self.reference_ppl


@dataclass(slots=True)
class Comparison:
    """Collects what ``Divergence`` needs, a few rows at a time. Four numbers a place are kept."""

    kl: list[NDArray[np.float64]] = field(default_factory=list)
    same: list[NDArray[np.bool_]] = field(default_factory=list)
    nll: list[NDArray[np.float64]] = field(default_factory=list)
    reference_nll: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, reference: Floats, other: Floats, targets: NDArray[np.int64]) -> None:
        """Both as logarithms of probabilities: (R, V)."""
        places = np.arange(len(targets))
        self.kl.append(np.sum(np.exp(reference) * (reference - other), axis=1, dtype=np.float64))
        self.same.append(reference.argmax(axis=1) == other.argmax(axis=1))
        self.nll.append(-other[places, targets].astype(np.float64))
        self.reference_nll.append(-reference[places, targets].astype(np.float64))

    def result(self) -> Divergence:
        kl = np.maximum(np.concatenate(self.kl), 0)
        return Divergence(
            mean=float(kl.mean()),
            error=float(kl.std() / math.sqrt(len(kl))),
            median=float(np.median(kl)),
            p999=float(np.quantile(kl, 0.999)),
            top=float(np.concatenate(self.same).mean()),
            reference_ppl=math.exp(float(np.concatenate(self.reference_nll).mean())),
            ppl=math.exp(float(np.concatenate(self.nll).mean())),
            tokens=len(kl),
        )
