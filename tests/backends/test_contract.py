"""What every backend owes the layers above: whatever was done to a sequence, its logits are those of a cold run.

A series of operations is drawn from a seed: opening with and without a stored prefix, steps over ragged chunks of
several sequences, accepting any part, forks, closes. Every row of logits on the way, and those of a probe at the end,
is compared with a fresh sequence of a second backend that is given the same tokens at once and has nothing to reuse.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llama_cpp
import numpy as np
import pytest

from edgeinfer.backends import llama_plan
from edgeinfer.backends.base import Backend, Chunk
from edgeinfer.backends.llama_cpp import LlamaCppBackend, LlamaCppSequence
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.backends.tape import TapeBackend, TapeSequence
from edgeinfer.errors import BadRequest, ContextLimit, EdgeInferError, EngineClosed
from tests.backends.recurrent import tiny_mamba
from tests.tiny import tiny_gguf

CONTEXT = 128  # tokens: four windows of the tiny gemma3
SERIES = range(12)
OPERATIONS = 40


@dataclass(frozen=True)
class Kind:
    """One row of what the contract is run on."""

    name: str
    load: Callable[[Path], Backend]
    model: str
    tolerance: float
    together: int = 6  # sequences in a step
    sizes: tuple[int, ...] = (1, 1, 2, 3, 5, 17)  # of a chunk
    rewinds: bool = True  # a recurrent state does not; tests/backends/test_llama_cpp.py has a rule of its own


@dataclass
class Live:
    """A sequence, and the tokens that the test believes it holds."""

    state: Any
    tokens: list[int]


@dataclass
class Subject:
    """A backend under test and a second one of the same kind that is only ever used cold."""

    backend: Backend
    cold: Backend
    kind: Kind
    series: str = ""
    live: list[Live] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    closed: list[list[int]] = field(default_factory=list)

    def expected(self, tokens: list[int], rows: int) -> np.ndarray:
        """Logits (rows, V) of a cold run."""
        state = self.cold.open()
        assert state.length == 0
        (logits,) = self.cold.step([Chunk(state, tokens, "all")])
        logits = np.array(logits, np.float32)[len(tokens) - rows :]
        state.accept(0)
        state.close()
        return logits

    def compare(self, tokens: list[int], logits: Any) -> None:
        """Holds rows of logits for the last tokens against a cold run; greedy tokens too where the gap allows."""
        found = np.array(logits, np.float32)
        wanted = self.expected(tokens, len(found)) if len(found) else found
        tolerance = self.kind.tolerance
        worst = np.abs(found - wanted).max(initial=0.0)
        assert worst <= tolerance, f"{self.series}: logits differ by {worst:.3g} after\n" + "\n".join(self.log)
        best = np.sort(wanted, axis=-1)[:, -2:]
        clear = best[:, 1] - best[:, 0] > 2 * tolerance
        assert (found.argmax(-1) == wanted.argmax(-1))[clear].all()

    def run(self, seed: int, operations: int = OPERATIONS) -> None:
        draw = random.Random(seed)
        self.series = f"{self.kind.name}, seed {seed}"
        kinds = {self.open: 3, self.step: 8, self.fork: 2, self.close: 2}
        for _ in range(operations):
            (operation,) = draw.choices(list(kinds), list(kinds.values()))
            if self.live or operation == self.open:
                operation(draw)
        for live in self.live:
            self.probe(live)
        while self.live:
            self.close(draw)
        while len(self.live) < 4:
            self.open(draw)
            self.probe(self.live[-1])
        while self.live:
            self.close(draw)

    def tokens(self, draw: random.Random, count: int) -> list[int]:
        return [draw.randrange(self.backend.info.vocab_size) for _ in range(count)]

    def open(self, draw: random.Random) -> None:
        if len(self.live) == 6:
            return
        known = [live.tokens for live in self.live] + self.closed
        start = draw.choice(known) if known and draw.random() < 0.8 else []
        prompt = (start[: draw.randint(0, len(start))] + self.tokens(draw, draw.randint(0, 4)))[:CONTEXT]
        state = self.backend.open(prompt)
        self.log.append(f"open({len(prompt)} tokens) -> {state.length}")
        assert state.length <= max(0, len(prompt) - 1)
        self.live.append(Live(state, prompt[: state.length]))

    def step(self, draw: random.Random) -> None:
        chosen = draw.sample(self.live, draw.randint(1, min(len(self.live), self.kind.together)))
        sizes = [draw.choice(self.kind.sizes) for _ in chosen]
        news = [self.tokens(draw, size) for size in sizes]
        rows = [draw.choice(["none", "last", "all"]) for _ in chosen]
        chunks = [Chunk(live.state, new, row) for live, new, row in zip(chosen, news, rows, strict=True)]
        plan = zip(map(self.live.index, chosen), sizes, rows, strict=True)
        self.log.append(f"step({list(plan)})")
        if any(len(live.tokens) + size > CONTEXT for live, size in zip(chosen, sizes, strict=True)):
            with pytest.raises(ContextLimit):
                self.backend.step(chunks)
            assert [live.state.length for live in self.live] == [len(live.tokens) for live in self.live]
            return
        results = self.backend.step(chunks)
        for live, new, row, logits in zip(chosen, news, rows, results, strict=True):
            assert logits.shape == ({"none": 0, "last": 1, "all": len(new)}[row], self.backend.info.vocab_size)
            self.compare(live.tokens + new, logits)
            count = draw.choice([len(new), len(new), 0, draw.randint(0, len(new))])
            self.log.append(f"accept({self.live.index(live)}, {count} of {len(new)})")
            live.state.accept(count)
            live.tokens += new[:count]
            assert live.state.length == len(live.tokens)

    def fork(self, draw: random.Random) -> None:
        if len(self.live) == 6:
            return
        source = draw.choice(self.live)
        self.log.append(f"fork({self.live.index(source)})")
        copy = Live(source.state.fork(), list(source.tokens))
        assert copy.state.length == len(copy.tokens)
        self.live.append(copy)

    def close(self, draw: random.Random) -> None:
        live = self.live.pop(draw.randrange(len(self.live)))
        self.log.append(f"close({len(live.tokens)} tokens)")
        live.state.close()
        self.closed.append(live.tokens)

    def probe(self, live: Live) -> None:
        new = [1, 2, 3][: CONTEXT - len(live.tokens)]
        self.log.append(f"probe({self.live.index(live)}, after {len(live.tokens)} tokens)")
        if new:
            (logits,) = self.backend.step([Chunk(live.state, new, "all")])
            self.compare(live.tokens + new, logits)
            live.state.accept(0)


def load_tape(_: Path) -> TapeBackend:
    return TapeBackend(context=CONTEXT)


def load_llama_cpp(path: Path) -> LlamaCppBackend:
    return LlamaCppBackend.load(path, context=CONTEXT, threads=1)


def load_exact(path: Path) -> LlamaCppBackend:
    """float32 keys and values, and no flash attention: what is left of the differences is the order of additions."""
    params = llama_cpp.llama_context_default_params()
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with patch.object(llama_cpp, "llama_context_default_params", lambda: params):
        return load_llama_cpp(path)


def load_crowded(path: Path) -> LlamaCppBackend:
    """A cache that holds two sequences and a half, so that those that wait lose their place."""
    with patch.object(llama_plan, "fit", lambda *_: (CONTEXT, CONTEXT)):
        backend = load_exact(path)
    assert backend.cells == 256
    return backend


def load_mlx(path: Path) -> MLXBackend:
    return MLXBackend.load(path, context=CONTEXT, threads=1)


# The tiny models' logits have a standard deviation of 1.6, and one token too many or too few moves them by about 1.
# The same tokens in other steps move them less: the backends pick other kernels for one row than for many, and add in
# the order of the cache; Mamba's state carries its rounding along. As shipped llama.cpp sums float16 values in float16,
# and its GELU is a table in float16.
KINDS = (
    Kind("tape", load_tape, "none", 0.0),
    Kind("llama.cpp exact llama", load_exact, "llama", 2e-5),
    Kind("llama.cpp exact gemma3", load_exact, "gemma3", 3e-3),
    Kind("llama.cpp exact mamba", load_exact, "mamba", 1e-4, rewinds=False),
    Kind("llama.cpp crowded llama", load_crowded, "llama", 2e-5, 2, (1, 9, 40)),
    Kind("llama.cpp crowded gemma3", load_crowded, "gemma3", 3e-3, 2, (1, 9, 40)),
    Kind("llama.cpp llama", load_llama_cpp, "llama", 5e-2),
    Kind("llama.cpp gemma3", load_llama_cpp, "gemma3", 5e-2),
    Kind("mlx llama", load_mlx, "llama", 1e-4),
    Kind("mlx gemma3", load_mlx, "gemma3", 1e-4),
)


def _name(kind: Kind) -> str:
    return kind.name.replace(" ", "-")


each_kind = pytest.mark.parametrize("kind", KINDS, ids=_name, scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for architecture in ("llama", "gemma3"):
        tiny_gguf(folder / f"{architecture}.gguf", architecture)
    tiny_mamba(folder / "mamba.gguf")
    return folder


@pytest.fixture(scope="module")
def subject(kind: Kind, folder: Path) -> Iterator[Subject]:
    path = folder / f"{kind.model}.gguf"
    with closing(kind.load(path)) as backend, closing(kind.load(path)) as cold:
        yield Subject(backend, cold, kind)


@each_kind
@pytest.mark.parametrize("seed", SERIES)
def test_any_series_of_operations_gives_the_logits_of_a_cold_run(subject: Subject, seed: int) -> None:
    replace(subject, log=[], live=[], closed=[]).run(seed)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.rewinds], ids=_name, scope="module")
def test_a_stored_prefix_is_found_and_the_last_token_is_left(subject: Subject) -> None:
    backend = subject.backend
    prompt = [5, 9, 31, 40, 41, 7, 30, 12]
    first = backend.open()
    backend.step([Chunk(first, prompt, "none")])
    first.accept(len(prompt))
    while_open = backend.open(prompt)
    assert while_open.length == len(prompt) - 1
    first.close()
    while_open.close()
    for tokens, held in ((prompt, 7), ([*prompt[:5], 3, 3], 5), (prompt[:1], 0), ([], 0)):
        state = backend.open(tokens)
        assert state.length == held
        state.close()


@each_kind
def test_a_chunk_that_does_not_fit_changes_no_sequence(subject: Subject) -> None:
    draw = random.Random(7)
    fits, full = (Live(subject.backend.open(), subject.tokens(draw, count)) for count in (9, CONTEXT))
    for live in (fits, full):
        subject.backend.step([Chunk(live.state, live.tokens, "none")])
        live.state.accept(len(live.tokens))
    with pytest.raises(ContextLimit) as caught:
        subject.backend.step([Chunk(fits.state, [1, 2], "all"), Chunk(full.state, [3], "last")])
    assert (caught.value.needed, caught.value.available) == (CONTEXT + 1, CONTEXT)
    assert (fits.state.length, full.state.length) == (9, CONTEXT)
    replace(subject, live=[fits, full]).probe(fits)
    fits.state.close()
    full.state.close()


@each_kind
def test_the_rules_of_the_seam_are_enforced(subject: Subject) -> None:
    backend, other = subject.backend, subject.cold
    state, stranger = backend.open(), other.open()
    with pytest.raises(BadRequest):
        state.accept(0)
    for tokens in ([], [-1], [backend.info.vocab_size]):
        with pytest.raises(BadRequest):
            backend.step([Chunk(state, tokens)])
    with pytest.raises(BadRequest):
        backend.step([Chunk(state, [1]), Chunk(state, [2])])
    with pytest.raises(BadRequest):
        backend.step([Chunk(stranger, [1])])
    assert state.length == 0
    backend.step([Chunk(state, [1, 2], "none")])
    with pytest.raises(BadRequest):
        backend.step([Chunk(state, [3])])
    with pytest.raises(BadRequest):
        state.fork()
    for count in (3, -1):
        with pytest.raises(BadRequest):
            state.accept(count)
    state.accept(1)
    with pytest.raises(BadRequest):
        state.accept(0)
    assert state.length == 1
    for closing_twice in (state, state, stranger):
        closing_twice.close()
    for use in (lambda: backend.step([Chunk(state, [1])]), lambda: state.accept(0), state.fork):
        with pytest.raises((BadRequest, EngineClosed)):
            use()


@each_kind
def test_after_close_nothing_works_and_nothing_breaks(kind: Kind, folder: Path) -> None:
    backend = kind.load(folder / f"{kind.model}.gguf")
    state, pending = backend.open(), backend.open()
    backend.step([Chunk(pending, [1, 2], "none")])
    backend.close()
    backend.close()
    for use in (backend.open, lambda: backend.step([Chunk(state, [1])]), state.fork, lambda: pending.accept(2)):
        with pytest.raises(EngineClosed):
            use()
    state.close()
    pending.close()


class KeepsOneTooMany:
    """A broken accept that even lies about it: a rejected token stays."""

    extra = 0

    @property
    def length(self) -> int:
        return super().length - self.extra  # type: ignore[misc, no-any-return]

    def accept(self, count: int) -> None:
        kept = min(count + 1, len(self.slot.pending))  # type: ignore[attr-defined]
        self.extra += kept - count
        super().accept(kept)  # type: ignore[misc]


class SharesWrites:
    """A broken fork that lies about it: both sides write into the same memory."""

    claimed: int | None = None

    @property
    def length(self) -> int:
        return super().length if self.claimed is None else self.claimed  # type: ignore[misc, no-any-return]

    def accept(self, count: int) -> None:
        super().accept(count)  # type: ignore[misc]
        if self.claimed is not None:
            self.claimed += count

    def fork(self) -> Any:
        self.claimed = self.length
        copy = super().fork()  # type: ignore[misc]
        copy.claimed, copy.slot = self.length, self.slot  # type: ignore[attr-defined]
        return copy

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("flaw", [KeepsOneTooMany, SharesWrites])
@pytest.mark.parametrize(("kind", "sequence"), [(KINDS[0], TapeSequence), (KINDS[6], LlamaCppSequence)])
def test_a_broken_backend_fails_the_contract(
    kind: Kind, sequence: type, flaw: type, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / f"{kind.model}.gguf"
    broken = type(flaw.__name__, (flaw, sequence), {})
    with closing(kind.load(path)) as cold, closing(kind.load(path)) as backend:
        monkeypatch.setattr(f"{sequence.__module__}.{sequence.__name__}", broken)
        with pytest.raises((AssertionError, EdgeInferError)):
            run_all(Subject(backend, cold, kind))


def test_trusting_a_sliding_window_to_keep_its_past_fails_the_contract(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCppBackend, "_intact", lambda *_: True)
    path = folder / "gemma3.gguf"
    with closing(load_crowded(path)) as backend, closing(load_crowded(path)) as cold, pytest.raises(AssertionError):
        run_all(Subject(backend, cold, next(kind for kind in KINDS if kind.name == "llama.cpp crowded gemma3")))


def run_all(subject: Subject) -> None:
    for seed in SERIES:
        subject.run(seed)
