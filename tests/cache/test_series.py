"""Any series of appends, partial accepts, forks, cancels, edits and reopenings gives what a cold run gives.

The rows of a step that the native path computes do not depend on the step, so there the logits are the same bit for
bit; numpy's products do depend on it, so there the greedy tokens are compared.
``python -m tests.cache.test_series 10000 [seed]`` runs as many series.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import FORMATS
from tests.tiny import tiny_gguf

CONTEXT = 1536
NAMES = [name for name, form in FORMATS.items() if form.exact or all(form.widths)]
LENGTHS = (1, 1, 1, 2, 5, 16, 100, 128, 300, 512)
CLOSE = 2e-3
"""Between logits, whose standard deviation is 1.6, of the same tokens in other steps of numpy."""


def tiny(path: Path, architecture: str) -> Path:
    """A model of few layers; of Gemma's, every second one sees a window."""
    more = (
        {".attention.sliding_window_pattern": 2, ".attention.sliding_window": 300} if architecture == "gemma3" else {}
    )
    return tiny_gguf(path, architecture, context=CONTEXT, metadata=more)


class Series:
    """One random series on a backend; ``cold`` is another backend of the same model and format that never reuses."""

    def __init__(self, backend: MLXBackend, cold: MLXBackend, seed: int) -> None:
        self.backend, self.cold = backend, cold
        self.random = random.Random(seed)
        self.texts = [[self.random.randrange(backend.info.vocab_size) for _ in range(CONTEXT)] for _ in range(2)]
        self.live: list[tuple[Any, list[int]]] = []
        self.checked = 0

    def run(self, steps: int) -> None:
        self.open()
        for _ in range(steps):
            move = self.random.choice(
                (self.append, self.append, self.append, self.draft, self.fork, self.reopen, self.cancel)
            )
            move()
        for state, tokens in self.live:
            self.compare(state, tokens)
            state.close()

    def text(self) -> list[int]:
        """What a prompt may be: a part of one of two texts, perhaps with a token changed."""
        text = list(self.random.choice(self.texts))
        if self.random.random() < 0.3:
            text[self.random.randrange(CONTEXT)] = self.random.randrange(self.backend.info.vocab_size)
        return text

    def open(self, wanted: list[int] | None = None) -> None:
        text = self.text()[: self.random.choice((200, 513, 700, 1100))] if wanted is None else wanted
        state = self.backend.open(text)
        assert state.length < len(text)
        tokens = text[: state.length]
        self.live.append((state, tokens))
        while len(tokens) < len(text):
            part = text[len(tokens) : len(tokens) + self.random.choice((64, 300, 512))]
            self.step([(state, tokens, part, len(part))])

    def step(self, parts: list[tuple[Any, list[int], list[int], int]]) -> list[Any]:
        """Each: sequence, its tokens, new ones, and how many of those are kept."""
        logits = self.backend.step([Chunk(state, new) for state, _, new, _ in parts])
        for state, tokens, new, count in parts:
            state.accept(count)
            tokens += new[:count]
            assert state.length == len(tokens)
        return logits

    def append(self) -> None:
        """Some tokens to one or two sequences in one step."""
        chosen = self.random.sample(self.live, min(len(self.live), self.random.choice((1, 1, 2))))
        parts = []
        for state, tokens in chosen:
            new = self.text()[len(tokens) :][: self.random.choice(LENGTHS)]
            if new:
                parts.append((state, tokens, new, len(new)))
        if parts:
            self.step(parts)

    def draft(self) -> None:
        """Tokens of which a part is taken back."""
        state, tokens = self.random.choice(self.live)
        new = self.text()[len(tokens) :][: self.random.choice((4, 16, 16, 300))]
        if new:
            self.step([(state, tokens, new, self.random.randint(0, len(new)))])

    def fork(self) -> None:
        state, tokens = self.random.choice(self.live)
        if len(self.live) < 4:
            self.live.append((state.fork(), list(tokens)))

    def cancel(self) -> None:
        """Closed between a step and its accept."""
        state, tokens = self.live.pop(self.random.randrange(len(self.live)))
        if len(tokens) < CONTEXT:
            self.backend.step([Chunk(state, [1] * min(20, CONTEXT - len(tokens)))])
        state.close()
        if not self.live:
            self.open()

    def reopen(self) -> None:
        """Closed, and opened with the same tokens, some of them, or others behind them."""
        state, tokens = self.live.pop(self.random.randrange(len(self.live)))
        state.close()
        kept = tokens[: self.random.choice((len(tokens), len(tokens) - 3, len(tokens) // 2))]
        self.open(
            [*kept, 7, 8][:CONTEXT]
            if self.random.random() < 0.5
            else [*kept, *self.text()[len(kept) :][:30], 5][:CONTEXT]
        )

    def compare(self, state: Any, tokens: list[int]) -> None:
        new = [self.random.randrange(self.backend.info.vocab_size)]
        if len(tokens) >= CONTEXT:
            return
        warm = np.array(self.backend.step([Chunk(state, new)])[0])
        state.accept(0)
        fresh = self.cold.open()
        want = np.array(self.cold.step([Chunk(fresh, tokens + new)])[0])
        fresh.close()
        self.cold.forget()
        self.checked += 1
        if self.backend.recorded:
            assert np.array_equal(warm, want), (
                f"logits differ by {np.abs(warm - want).max()} after {len(tokens)} tokens"
            )
        else:
            assert np.abs(warm - want).max() < CLOSE
            assert warm.argmax() == want.argmax() or np.ptp(np.sort(want[0])[-2:]) < 2 * CLOSE


@contextmanager
def backends(path: Path, name: str) -> Iterator[tuple[MLXBackend, MLXBackend]]:
    first, second = (MLXBackend.load(path, CONTEXT, 2, kv=name) for _ in range(2))
    with closing(first), closing(second):
        yield first, second


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("name", NAMES)
def test_native(tmp_path: Path, architecture: str, name: str) -> None:
    if not ops.fused:
        pytest.skip("the native path was not built")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with backends(tiny(tmp_path / "m.gguf", architecture), name) as (backend, cold):
        assert backend.recorded
        for i in range(6):
            Series(backend, cold, seed + i).run(10)


@pytest.mark.parametrize("name", ["exact", "k8v4", "k3v3"])
def test_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(ops, "fused", False)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with backends(tiny(tmp_path / "m.gguf", "gemma3"), name) as (backend, cold):
        assert not backend.recorded
        for i in range(3):
            Series(backend, cold, seed + i).run(8)


def main(count: int, seed: int, folder: Path) -> None:
    """``count`` series, every format and both architectures in turn."""
    started, compared = time.perf_counter(), 0
    for number, name in enumerate(NAMES):
        for architecture in ("llama", "gemma3"):
            path = tiny(folder / f"{architecture}.gguf", architecture)
            with backends(path, name) as (backend, cold):
                for i in range(-(-count // (2 * len(NAMES)))):
                    series = Series(backend, cold, seed + number * count + i)
                    try:
                        series.run(10)
                    except AssertionError:
                        print(f"{name} {architecture} seed {seed + number * count + i}", flush=True)
                        raise
                    compared += series.checked
        print(f"{name}: {compared} comparisons, {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, Path(scratch))
