"""Any backend of the seam as a subject of the bench: this package's own engine above all."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgeinfer.backends.base import Backend, Chunk, Logits, Rows
from edgeinfer.bench.plan import WARM_UP, Kind
from edgeinfer.bench.subject import random_tokens

if TYPE_CHECKING:
    from edgeinfer.bench.worker import Job

_SLICE = 512  # tokens of a prompt in one step, as the scheduler cuts it


def prepare() -> None:
    """Imports what loading needs."""
    import edgeinfer.backends.mlx  # noqa: F401


def load(job: Job) -> SeamSubject:
    """This package's engine with the model of a job."""
    from edgeinfer.backends.mlx import MLXBackend

    return SeamSubject(MLXBackend.load(job.model, job.context, job.threads, job.kv))


def load_tokenizer(path: Path) -> None:
    """What loading a model for text takes on top."""
    from edgeinfer.formats.gguf import open_gguf
    from edgeinfer.tokenizer.vocabulary import Tokenizer

    with open_gguf(path) as file:
        Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)


class SeamSubject:
    """Depths are computed once and forked for each measurement."""

    kinds: ClassVar[tuple[Kind, ...]] = ("decode", "prefill", "rows")
    computes_depth: ClassVar[bool] = True

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.perf_counter) -> None:
        self.backend = backend
        self._clock = clock
        self._tokens = random_tokens(backend.info.context, backend.info.vocab_size)
        self._bases: dict[int, Any] = {}
        self._held: Any = None
        self._draft: Any = None  # verifies rows after what is held

    def hold(self, depth: int) -> None:
        nearest = max((known for known in self._bases if known <= depth), default=None)
        if nearest != depth:
            base = self.backend.open() if nearest is None else self._bases[nearest].fork()
            self._feed(base, self._tokens[base.length : depth])
            self._bases[depth] = base
        self._held, self._draft = self._bases[depth], None

    def decode(self, count: int) -> float:
        state = self._held.fork()
        token: Any = self._tokens[state.length : state.length + 1]
        for _ in range(WARM_UP):  # the first one pays for what the fork shared
            token = self._next(state, token)
        read(token)
        started = self._clock()
        chosen = [token]
        for _ in range(count):
            chosen.append(self._next(state, chosen[-1]))
            read(chosen[-2])  # one step behind, as generation does
        read(chosen[-1])
        seconds = self._clock() - started
        state.close()
        return seconds

    def prefill(self, length: int) -> float:
        state = self.backend.open()
        started = self._clock()
        self._feed(state, self._tokens[:length])
        seconds = self._clock() - started
        state.close()
        return seconds

    def verify(self, rows: int) -> float:
        if self._draft is None:
            self._draft = self._held.fork()
            self._verify(1)
        return self._verify(rows)

    @property
    def held_bytes(self) -> int:
        """Keys and values of what is held."""
        return int(self._held.nbytes)

    def close(self) -> None:
        self.backend.close()

    def _verify(self, rows: int) -> float:
        tokens = self._tokens[self._draft.length : self._draft.length + rows]
        started = self._clock()
        self.wait(self._step(self._draft, tokens, "all"))
        seconds = self._clock() - started
        self._draft.accept(0)
        return seconds

    def _feed(self, state: Any, tokens: list[int]) -> None:
        logits: Logits = None
        for start, stop in pairwise([*range(0, len(tokens), _SLICE), len(tokens)]):
            logits = self._step(state, tokens[start:stop], "last" if stop == len(tokens) else "none")
            state.accept(stop - start)
        if logits is not None:
            self.wait(logits)

    def _next(self, state: Any, token: Any) -> Any:
        """The likeliest token after ``token``: (1,), on the device where the backend is lazy."""
        logits = self._step(state, token, "last")
        state.accept(1)
        if not self.backend.info.lazy:
            return logits.argmax(axis=-1)
        import mlx.core as mx

        chosen = mx.argmax(logits, axis=-1).astype(mx.int32)
        mx.async_eval(chosen)  # type: ignore[no-untyped-call]
        return chosen

    def wait(self, logits: Logits) -> None:
        """Until they are computed."""
        if self.backend.info.lazy:
            import mlx.core as mx

            mx.eval(logits)

    def _step(self, state: Any, tokens: Any, rows: Rows) -> Logits:
        return self.backend.step([Chunk(state, tokens, rows)])[0]


def read(token: Any) -> int:
    """The id itself, once it is computed."""
    return int(token[0])
