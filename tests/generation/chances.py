"""A toy model whose distribution is known, every drafter on it, and whether the text has that distribution.

``python -m tests.generation.chances`` plays 200,000 tokens with each drafter; the tests play a part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx_head import Trace
from edgeinfer.backends.tape import TapeBackend, TapeSequence
from edgeinfer.generation import sampling
from edgeinfer.generation.request import Request
from edgeinfer.generation.scheduler import Scheduler
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.diffusion import DiffusionDrafter
from edgeinfer.speculation.draft_model import ModelDrafter
from edgeinfer.speculation.drafter import Drafter, Text
from edgeinfer.speculation.mtp import Memories, MTPDrafter
from edgeinfer.speculation.sources import layer_skip
from edgeinfer.speculation.speculation import Shared
from edgeinfer.speculation.structured import StructuredDrafter
from edgeinfer.types import SamplingParams
from tests.generation.fakes import LETTERS, FakeTokenizer, Kept
from tests.speculation.drafters import Eager, chance, eager, endless, only, wrong

VOCAB, MASK = 16, 15
TOKENS = 200_000
TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
OFF: dict[str, float] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
FILTERS: dict[str, dict[str, float]] = {
    "none": OFF,
    "top-k, top-p, min-p": {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
    "typical": {**OFF, "typical_p": 0.8},
    "top-n-sigma": {**OFF, "top_n_sigma": 1.2},
}
_TABLE = np.random.default_rng(3).normal(0, 1.5, (VOCAB, VOCAB)).astype(np.float32)
_SIMILAR = _TABLE + np.random.default_rng(4).normal(0, 0.7, (VOCAB, VOCAB)).astype(np.float32)
_STEP = np.stack([sampling.softmax(np, row) for row in _SIMILAR])
_TOKENIZER: Any = FakeTokenizer(LETTERS)


class MarkovSequence(TapeSequence):
    """Hands its tokens to a head in place of hidden states."""

    __slots__ = ("trace",)

    def watch(self) -> Trace:
        self.trace = Trace()
        return self.trace

    def accept(self, count: int) -> None:
        if hasattr(self, "trace"):
            self.trace.fresh = mx.array(list(self.slot.pending or ()), mx.float32).reshape(-1, 1)
            self.trace.keep(self.length, count)
        super().accept(count)


class Markov(TapeBackend):
    """Logits that depend on the last token alone. It has all that a drafter may ask for; what that says is only
    similar."""

    layers, block = 2, (MASK, 5)

    def __init__(self, table: Any = _TABLE, **options: Any) -> None:
        super().__init__(vocab_size=VOCAB, **options)
        self.table = table
        self.head = SimpleNamespace(
            step=lambda memory, length, hidden, tokens, first: mx.array(list(tokens), mx.float32).reshape(-1, 1),
            logits=lambda hidden: _SIMILAR[int(hidden.item())],
        )

    def shallow(self, layers: int) -> Markov:
        return Markov(_SIMILAR, context=self.info.context)

    def filled(self, state: Any, tokens: Sequence[int]) -> Any:
        """(L, V) logits of each row's own place: those of the last known token, as often applied as it is away."""
        chances = np.eye(VOCAB)[tokens[0]]
        rows = [chances]
        for _ in tokens[1:]:
            rows.append(rows[-1] @ _STEP)
        return np.log(np.maximum(rows, 1e-9)).astype(np.float32)

    def opened(self, tokens: Any, prompt: int | None) -> TapeSequence:
        plain = super().opened(tokens, prompt)
        return MarkovSequence(self, plain.slot, prompt)

    def _rows(self, chunk: Chunk, new: Any) -> Any:
        return self.table[new[len(new) - {"none": 0, "last": 1, "all": len(new)}[chunk.rows] :]]


class Stubborn:
    """A grammar that forces nothing and says that it forces the same tokens always."""

    def forced(self) -> tuple[list[int], list[int]]:
        return [3], [5, 5]

    def allowed(self, tokens: Any) -> int:
        return len(tokens)


def _computing(backend: Markov, make: Callable[[Text], Drafter]) -> Shared:
    """Drafts as many tokens as it forecasts."""
    shared: Shared = only(backend.info, make, Eager, price=(0.1, 0.1))
    return shared


def _second(backend: Markov, sampled: bool) -> Shared:
    draft, learned = backend.shallow(1), Learned()
    return _computing(backend, lambda text: ModelDrafter("second", draft, text, learned, sampled=sampled))


def _skipping(backend: Markov) -> Shared:
    source = layer_skip(backend)["layer_skip"]
    return _computing(backend, lambda text: source.make(text))  # type: ignore[arg-type, return-value]


def _predicting(backend: Markov) -> Shared:
    learned, memories = Learned(), Memories()
    return _computing(backend, lambda text: MTPDrafter(backend.head, text, learned, memories))  # type: ignore[arg-type]


def _diffusing(backend: Markov) -> Shared:
    learned = Learned()
    return _computing(backend, lambda text: DiffusionDrafter(backend, text, learned))


DRAFTERS: dict[str, Callable[[Markov], Shared]] = {
    "suffix": lambda backend: Shared(backend.info),
    "structured": lambda backend: only(backend.info, lambda text: StructuredDrafter(Stubborn()), Eager),
    "mtp": _predicting,
    "layer_skip": _skipping,
    "diffusion": _diffusing,
    "draft_model": lambda backend: _second(backend, sampled=False),
    "draft_model, p/q": lambda backend: _second(backend, sampled=True),
    "always wrong": lambda backend: eager(backend.info, wrong(VOCAB)),
    "repeats": lambda backend: eager(backend.info, lambda text, limit: [text[-1]] * min(limit, 4)),
    "past the end": lambda backend: eager(backend.info, endless(0)),
    "random": lambda backend: eager(backend.info, chance(VOCAB)),
}


def sigmas(drafter: str, temperature: float, name: str, count: int) -> tuple[float, int]:
    """How far the text of ``count`` tokens is from the exact distribution, in standard deviations of chi-square, and
    how many drafted tokens came true. At temperature 0 any other token than the likeliest is infinitely far."""
    options, seed = FILTERS[name], list(FILTERS).index(name)
    params = SamplingParams(max_tokens=count, temperature=temperature, seed=seed, ignore_eos=True, **options)  # type: ignore[arg-type]
    backend = Markov(context=count + 2)
    scheduler = Scheduler(backend, _TOKENIZER, speculation=DRAFTERS[drafter](backend))
    outlet = Kept()
    scheduler.add(Request([1], params), outlet)
    while scheduler.tick():
        pass
    ids = np.array([1, *outlet.ids])
    assert outlet.error is None, outlet.error
    assert len(ids) == count + 1
    seen = np.zeros((VOCAB, VOCAB))
    np.add.at(seen, (ids[:-1], ids[1:]), 1)
    accepted = outlet.finished.usage.accepted
    if temperature == 0:
        right = all(seen[token, _TABLE[token].argmax()] == seen[token].sum() for token in range(VOCAB))
        return (0.0 if right else np.inf), accepted
    expected = np.stack([_exact(_TABLE[token], params) for token in range(VOCAB)]) * seen.sum(1, keepdims=True)
    if seen[expected == 0].any():
        return np.inf, accepted
    usual = expected >= 5
    square = ((seen - expected)[usual] ** 2 / expected[usual]).sum()
    freedom = usual.sum() - VOCAB
    return float((square - freedom) / np.sqrt(2 * freedom)), accepted


def _exact(row: Any, params: SamplingParams) -> Any:
    best, ids = sampling.candidates(np, row, params, 0, 0)
    chances = np.zeros(VOCAB)
    chances[ids] = sampling.softmax(np, best)
    return chances


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else TOKENS
    for drafter in DRAFTERS:
        found = [
            sigmas(drafter, temperature, name, total // (len(TEMPERATURES) * len(FILTERS)))
            for temperature in TEMPERATURES
            for name in FILTERS
        ]
        print(
            f"{drafter:18} {total} tokens, worst {max(sigma for sigma, _ in found):.2f} sigma, accepted "
            f"{sum(accepted for _, accepted in found)}",
            flush=True,
        )
