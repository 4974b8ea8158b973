"""One request while it is answered: what it feeds to the backend next, and what becomes of the logits."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from edgeinfer.backends.base import Backend, Chunk, ModelInfo
from edgeinfer.generation.output import Writer
from edgeinfer.generation.request import Request
from edgeinfer.generation.sampler import Choice, Sampler, not_finite
from edgeinfer.types import Event, Finished, FinishReason, Timings, TokenLogprob, Usage

if TYPE_CHECKING:
    from edgeinfer.tokenizer.vocabulary import Tokenizer


class Outlet(Protocol):
    """Where the events of a request go."""

    submitted: float  # time.perf_counter() when it was asked for

    @property
    def cancelled(self) -> bool:
        """Nobody waits for the rest."""

    @property
    def ready(self) -> bool:
        """More events are welcome now."""

    def put(self, event: Event) -> None:
        """The next event; ``Finished`` is the last."""

    def fail(self, error: BaseException) -> None:
        """After ``Finished("error")``: what to raise."""


class Run:
    """A request with its sequence.

    Where the logits may stay on the device and the sampler does not need the host, decoding is pipelined: the token
    sampled last (``_ahead``) is fed to the next step before it is read, and is read while that step runs. The step
    is accepted only then, so that a token after the end is never kept.
    """

    def __init__(self, request: Request, outlet: Outlet, tokenizer: Tokenizer, info: ModelInfo) -> None:
        params = request.params
        self.request = request
        self.outlet = outlet
        self.over = False
        self._tokenizer = tokenizer
        self._info = info
        self._end_ids = tokenizer.end_ids if request.end_ids is None else request.end_ids
        if params.ignore_eos:
            self._end_ids = frozenset()
        self._limit = min(params.max_tokens, info.context - len(request.ids))
        self._prompt = list(request.ids)
        self._history = array("i", request.ids)  # a copy of a part costs penalties next to nothing
        self._fed = 0  # prompt tokens in the sequence
        self._cached = 0
        self._made = 0
        self._planned = 0  # tokens of the chunk that is being computed
        self._first_at = self._last_at = 0.0
        self._state: Any = None
        self._sampler: Sampler | None = None
        self._writer: Writer | None = None
        self._xp: Any = None  # mlx.core where decoding is pipelined
        self._ahead: Any = None  # (1,) the last token, not read yet
        self._next: Any = None  # (1,) the token after it

    def open(self, backend: Backend, sampler: Sampler, writer: Writer) -> None:
        """Takes a sequence with as much of the prompt as the backend remembers."""
        self._sampler, self._writer = sampler, writer
        if self._info.lazy and not sampler.needs_host:
            import mlx.core

            self._xp = mlx.core
        self._state = backend.open(self.request.ids)
        self._fed = self._cached = self._state.length

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        return self._end_ids

    @property
    def prefilling(self) -> bool:
        return self._fed < len(self.request.ids)

    def gains_from(self, other: Run, least: int) -> bool:
        """Whether ``other`` is about to compute ``least`` or more tokens that this prompt goes on with as well."""
        if not other.prefilling:
            return False
        end = other._fed + least
        return len(self._prompt) > end and self._prompt[:end] == other._prompt[:end]

    def plan(self, budget: int) -> Chunk | None:
        """The next chunk, of at most ``budget`` prompt tokens; None where the last token only waits to be read."""
        if self.prefilling:
            tokens = self.request.ids[self._fed : self._fed + budget]
            self._planned = len(tokens)
            complete = self._fed + len(tokens) == len(self.request.ids)
            return Chunk(self._state, tokens, "last" if complete else "none")
        self._planned = 1
        if self._ahead is None:
            return Chunk(self._state, self._history[-1:])
        if self._made + 1 >= self._limit:
            return None
        return Chunk(self._state, self._xp.maximum(self._ahead, 0))

    def launch(self, chunk: Chunk | None, logits: Any) -> list[Any]:
        """The next token as a lazy array, where decoding is pipelined and there is a row to sample."""
        if self._xp is None or chunk is None or chunk.rows == "none":
            return []
        assert self._sampler is not None
        position = len(self._history) + (self._ahead is not None)
        self._next = self._sampler.on_device(self._xp, logits[-1], position)
        return [self._next]

    def settle(self, chunk: Chunk | None, logits: Any) -> None:
        """Reads what there is to read, accepts the chunk, emits events and finishes when it is time."""
        assert self._sampler is not None
        reason = self._take(self._read_ahead()) if self._ahead is not None else None
        if chunk is not None:
            if self.prefilling:
                self._fed += self._planned
            self._state.accept(0 if reason else self._planned)
            if self._info.lazy and chunk.rows == "none":
                _wait_for(logits)
            if self._xp is None and chunk.rows == "last":
                reason = self._take(self._sampler.on_host(_on_host(logits[-1]), self._history))
        self._ahead, self._next = self._next, None
        if reason:
            self.finish(reason)

    def finish(self, reason: FinishReason) -> None:
        """Emits what was held back, then Finished, and gives the sequence up."""
        if self._writer is not None:
            for event in self._writer.finish():
                self.outlet.put(event)
            if self._writer.stop is not None:
                reason = "stop"
        self._end(reason)

    def fail(self, error: BaseException) -> None:
        """Ends with Finished("error"), then raises ``error`` at the consumer."""
        self._end("error")
        self.outlet.fail(error)

    def _end(self, reason: FinishReason) -> None:
        self.over = True
        self._ahead = self._next = None
        if self._state is not None:
            self._state.close()
        self.outlet.put(
            Finished(
                reason,
                Usage(prompt=len(self.request.ids), cached=self._cached, completion=self._made),
                self._timings(),
                seed=self._sampler.seed if self._sampler else self.request.params.seed or 0,
                truncated=self.request.truncated,
                stop=self._writer.stop if self._writer else None,
                backend=f"{self._info.backend} ({self._info.device})",
                warnings=tuple(self.request.warnings),
            )
        )

    def _read_ahead(self) -> Choice:
        token = int(self._ahead.item())
        if token < 0:
            raise not_finite(len(self._history))
        return Choice(token)

    def _take(self, choice: Choice) -> FinishReason | None:
        """Adds a token to the answer; the reason to finish, if it gives one."""
        assert self._writer is not None
        self._last_at = time.perf_counter()
        self._first_at = self._first_at or self._last_at
        self._made += 1
        if choice.id in self._end_ids:
            return "stop"
        self._history.append(choice.id)
        for event in self._writer.add(choice.id, self._logprob(choice)):
            self.outlet.put(event)
        if self._writer.stop is not None or (self._sampler is not None and self._sampler.finished):
            return "stop"
        return "length" if self._made >= self._limit else None

    def _logprob(self, choice: Choice) -> TokenLogprob | None:
        if self.request.params.logprobs is None:
            return None
        text = self._tokenizer.token_text
        top = tuple((token, text(token), logprob) for token, logprob in choice.top)
        return TokenLogprob(choice.id, text(choice.id), choice.logprob, top)

    def _timings(self) -> Timings:
        total = time.perf_counter() - self.outlet.submitted
        if not self._made:
            return Timings(total=total)
        first, after = self._first_at - self.outlet.submitted, self._last_at - self._first_at
        return Timings(
            first_token=first,
            total=total,
            prefill_rate=(len(self.request.ids) - self._cached) / first if first > 0 else 0.0,
            decode_rate=(self._made - 1) / after if after > 0 else 0.0,
        )


def _wait_for(logits: Any) -> None:
    """Slices of a prompt are not queued ahead of each other: a cancel would have to wait for all of them."""
    import mlx.core

    mlx.core.eval(logits)


def _on_host(row: Any) -> npt.NDArray[np.float32]:
    if isinstance(row, np.ndarray):
        return row.astype(np.float32, copy=False)
    import mlx.core

    return np.array(row.astype(mlx.core.float32))
