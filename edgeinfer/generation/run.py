"""One request while it is answered: what it feeds to the backend next, and what becomes of the logits."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from edgeinfer.backends.base import Backend, Chunk, ModelInfo
from edgeinfer.backends.rows import on_host
from edgeinfer.generation.output import Writer
from edgeinfer.generation.request import Request
from edgeinfer.generation.sampler import Choice, Sampler, not_finite
from edgeinfer.generation.verify import verified
from edgeinfer.speculation.pilot import Pilot
from edgeinfer.types import Event, Finished, FinishReason, Speculation, Timings, TokenLogprob, Usage

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
    is accepted only then, so that a token after the end is never kept. A draft waits until the last token is read.
    """

    def __init__(self, request: Request, outlet: Outlet, tokenizer: Tokenizer, info: ModelInfo) -> None:
        params = request.params
        self.request = request
        self.outlet = outlet
        self.pilot: Pilot | None = None  # set where tokens may be drafted
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
        self._thought = 0  # tokens of thought
        self._planned = 0  # tokens of the chunk that is being computed
        self._fresh: list[int] = []  # tokens of this step
        self._drafted = self._accepted = 0
        self._first_at = self._last_at = 0.0
        self._state: Any = None
        self._sampler: Sampler | None = None
        self._writer: Writer | None = None
        self._xp: Any = None  # mlx.core where decoding is pipelined
        self._ahead: Any = None  # (1,) the last token, not read yet
        self._next: Any = None  # (1,) the token after it

    def open(self, backend: Backend, sampler: Sampler, writer: Writer, reuse: bool = True) -> None:
        """Takes a sequence, with ``reuse`` one that holds as much of the prompt as the backend remembers."""
        self._sampler, self._writer = sampler, writer
        if self._info.lazy and not sampler.needs_host:
            import mlx.core

            self._xp = mlx.core
        self._state = backend.open(self.request.ids if reuse else ())
        self._fed = self._cached = self._state.length

    @property
    def state(self) -> Any:
        """The sequence; None before it is open."""
        return self._state

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

    @property
    def length(self) -> int:
        """Tokens of prompt and answer by now."""
        return len(self._history)

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer at most."""
        return len(self.request.ids) + self._limit

    @property
    def pipelined(self) -> bool:
        """The last token is still being computed."""
        return self._ahead is not None

    @property
    def pipelines(self) -> bool:
        """Plain decoding does not wait for the host."""
        return self._xp is not None

    @property
    def rows(self) -> int:
        """Tokens of the chunk that was planned last."""
        return self._planned

    @property
    def forced(self) -> bool:
        """More than the last token has to be fed: tokens that were put into the answer, not sampled."""
        return not self.prefilling and self._ahead is None and len(self._unfed) > 1

    @property
    def room(self) -> int:
        """Tokens that may still come after the next one."""
        return self._limit - self._made - 1

    def plan_prompt(self, budget: int) -> Chunk:
        """The next slice of the prompt, of at most ``budget`` tokens."""
        tokens = self.request.ids[self._fed : self._fed + budget]
        self._planned = len(tokens)
        complete = self._fed + len(tokens) == len(self.request.ids)
        return Chunk(self._state, tokens, "last" if complete else "none")

    def plan_token(self) -> Chunk | None:
        """The last token, with the draft if there is one; None where the last token only waits to be read."""
        self._planned = 1
        if self._ahead is not None:
            leaving = self.pilot is not None and self.pilot.leaving
            return Chunk(self._state, self._xp.maximum(self._ahead, 0)) if self.room and not leaving else None
        draft, unfed = self._draft, self._unfed
        self._planned = len(unfed) + len(draft)
        return Chunk(self._state, [*unfed, *draft], "all" if draft else "last")

    def launch(self, chunk: Chunk | None, logits: Any) -> list[Any]:
        """The next token as a lazy array, where decoding is pipelined and there is a row to sample."""
        if self._xp is None or chunk is None or chunk.rows != "last":
            return []
        assert self._sampler is not None
        position = len(self._history) + (self._ahead is not None)
        self._next = self._sampler.on_device(self._xp, logits[-1], position)
        return [self._next]

    def settle(self, chunk: Chunk | None, logits: Any) -> None:
        """Reads what there is to read, accepts the chunk, emits events and finishes when it is time."""
        assert self._sampler is not None
        assert self._writer is not None
        self._writer.step += 1
        draft, accepted = self._draft, 0
        prefilling = self.prefilling
        self._fresh.clear()
        reason = self._take(self._read_ahead()) if self._ahead is not None else None
        in_vain = reason is not None  # the chunk was on its way before the end was read
        if chunk is not None and chunk.rows == "all":
            reason, accepted = self._verify(draft, logits)
            self._state.accept(len(self._fresh))
        elif chunk is not None:
            if prefilling:
                self._fed += self._planned
            self._state.accept(0 if reason else self._planned)
            if self._info.lazy and chunk.rows == "none":
                _wait_for(logits)
            if self._xp is None and chunk.rows == "last":
                reason = self._take(self._sampler.on_host(on_host(logits[-1]), self._history))
        self._ahead, self._next = self._next, None
        if reason is None and self._thought_enough:
            reason = self._close_thoughts()
        if self.pilot is not None:
            decoding = chunk is not None and not (prefilling or in_vain)
            self.pilot.observe(self._fresh, accepted, decoding, self.room, self.pipelined)
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
        if self.pilot is not None:
            self.pilot.close(self._history[len(self.request.ids) :])
        kv_bytes = 0
        if self._state is not None:
            kv_bytes = self._state.nbytes
            self._state.close()
        self.outlet.put(
            Finished(
                reason,
                Usage(len(self.request.ids), self._cached, self._made, self._drafted, self._accepted, kv_bytes),
                self._timings(),
                seed=self._sampler.seed if self._sampler else self.request.params.seed or 0,
                truncated=self.request.truncated,
                stop=self._writer.stop if self._writer else None,
                backend=f"{self._info.backend} ({self._info.device})",
                warnings=tuple(self.request.warnings),
                speculation=self.pilot.report() if self.pilot else Speculation(),
            )
        )

    @property
    def _draft(self) -> Sequence[int]:
        return self.pilot.draft if self.pilot is not None else ()

    def _verify(self, draft: Sequence[int], logits: Any) -> tuple[FinishReason | None, int]:
        """Takes the sampled tokens as far as the draft foretold them, and one more; the reason to finish, and how
        many of the draft came true."""
        assert self._sampler is not None
        accepted = 0
        reason = None
        proposals = self.pilot.proposals if self.pilot is not None else ()
        choices = verified(self._sampler, self._xp, logits, draft, self._history, proposals)
        for place, choice in enumerate(choices):
            reason = self._take(choice)
            accepted += place < len(draft) and choice.id == draft[place]
            if reason or self._thought_enough:
                break
        self._drafted += len(draft)
        self._accepted += accepted
        return reason, accepted

    @property
    def _unfed(self) -> Sequence[int]:
        """Tokens of the answer that the sequence does not hold yet."""
        return self._history[self._state.length :]

    @property
    def _thought_enough(self) -> bool:
        reasoning, writer = self.request.reasoning, self._writer
        if reasoning is None or reasoning.budget is None or writer is None:
            return False
        return writer.thinking is not None and self._thought >= reasoning.budget

    def _close_thoughts(self) -> FinishReason | None:
        """Writes the end of the thoughts for the model, which then goes on from there with its answer."""
        assert self._writer is not None
        assert self._writer.thinking is not None
        self._ahead = None  # what it would have thought next
        for token in self._tokenizer.encode(f"\n{self._writer.thinking.end}\n\n", special=True):
            if reason := self._take(Choice(token)):
                return reason
        return None

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
        self._fresh.append(choice.id)
        if choice.id in self._end_ids:
            return "stop"
        self._history.append(choice.id)
        for event in self._writer.add(choice.id, self._logprob(choice)):
            self.outlet.put(event)
        self._thought += self._writer.thinking is not None
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
