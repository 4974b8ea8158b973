"""Owns the open requests and steps the backend for all of them together. One request is a batch of one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from edgeinfer.backends.base import Backend, Chunk
from edgeinfer.errors import ContextLimit, LimitExceeded
from edgeinfer.generation.output import Writer
from edgeinfer.generation.penalties import Breakers, find_breakers
from edgeinfer.generation.request import Request
from edgeinfer.generation.run import Outlet, Run
from edgeinfer.generation.sampler import Guesser, Sampler
from edgeinfer.generation.slices import Slices
from edgeinfer.generation.structured import Constraint, Structure
from edgeinfer.speculation.drafter import Text
from edgeinfer.speculation.pilot import Pilot
from edgeinfer.speculation.speculation import Shared
from edgeinfer.speculation.step import Candidate
from edgeinfer.tokenizer.detokenize import Detokenizer
from edgeinfer.types import OFF, SamplingParams

if TYPE_CHECKING:
    from edgeinfer.tokenizer.vocabulary import Tokenizer

PREFILL_CHUNK = 512
"""Prompt tokens in one step at most, of all requests together: what a decoding request waits for."""

MAX_OPEN = 16
"""Sequences that are computed at one time; more requests wait their turn."""

Turn: TypeAlias = list[tuple[Run, Chunk | None]]
"""Who moves, and with which chunk; None where only a token waits to be read."""


SHARED_PREFIX = 32
"""Tokens that two prompts must begin with alike for one to wait until the other has computed them."""


class Scheduler:
    """Lives on the backend's thread. Requests end one by one: what goes wrong in one does not touch the others."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        prefill_chunk: int = PREFILL_CHUNK,
        max_open: int = MAX_OPEN,
        speculation: Shared | None = None,
        alone: bool = False,
    ) -> None:
        """alone: requests run one at a time, each from its first token, so that the same request is the same
        computation also where tokens depend on their company."""
        self.backend = backend
        self._tokenizer = tokenizer
        self._slices = Slices(prefill_chunk, backend.info.row_invariant, backend.info.parameters)
        self._max_open = 1 if alone else max_open
        self._alone = alone
        self._speculation = speculation
        self._waiting: deque[Run] = deque()
        self._open: list[Run] = []
        self._structure: Structure | None = None
        self._breakers: dict[tuple[str, ...], Breakers] = {}
        self._candidates: list[Candidate] = []  # of this step
        self._depth = 0

    def add(self, request: Request, outlet: Outlet) -> None:
        """Takes a request that was checked; it is opened in the order of arrival."""
        self._waiting.append(Run(request, outlet, self._tokenizer, self.backend.info))

    def tick(self) -> bool:
        """One step for every request that can move; False when there is none.

        The tokens of all pipelined requests are on their way before the first of them is waited for.
        """
        self._drop_cancelled()
        self._admit()
        started = time.perf_counter()
        turn = self._turn()
        self._advance(turn)
        self._open = [run for run in self._open if not run.over]
        self._account(turn, time.perf_counter() - started)
        return bool(turn)

    def _advance(self, turn: Turn) -> None:
        """One step for all of ``turn`` together, or in halves where the backend's memory does not hold them at once."""
        chunks = [chunk for _, chunk in turn if chunk is not None]
        try:
            rows = iter(self.backend.step(chunks) if chunks else ())
        except Exception as error:  # whatever the backend raises is for the consumers to see
            if isinstance(error, ContextLimit) and len(turn) > 1:
                half = len(turn) // 2
                self._advance(turn[:half])
                self._advance(turn[half:])
            else:
                _fail(turn, error)
            return
        results = [(run, chunk, next(rows) if chunk is not None else None) for run, chunk in turn]
        self._launch(results)
        for run, chunk, logits in results:
            if not run.over:
                with _contained(run):
                    run.settle(chunk, logits)

    def close(self) -> None:
        """Ends every request as cancelled and frees the backend."""
        for run in (*self._open, *self._waiting):
            with _contained(run):
                run.finish("cancelled")
        self._open.clear()
        self._waiting.clear()
        if self._speculation is not None:
            self._speculation.close()
        self.backend.close()

    def _drop_cancelled(self) -> None:
        for run in (*self._open, *self._waiting):
            if run.outlet.cancelled:
                with _contained(run):
                    run.finish("cancelled")
        self._open = [run for run in self._open if not run.over]
        self._waiting = deque(run for run in self._waiting if not run.over)

    def _admit(self) -> None:
        """Opens who waits, in the order of arrival, but for those whose beginning is being computed for another.

        Requests whose reader pauses do not count: what it waits for may be behind them.
        """
        held: deque[Run] = deque()
        moving = sum(run.outlet.ready for run in self._open)
        while self._waiting and moving < self._max_open:
            run = self._waiting.popleft()
            if not self._fits(run):
                self._waiting.appendleft(run)
                break
            if any(run.gains_from(other, SHARED_PREFIX) for other in self._open):
                held.append(run)
                continue
            with _contained(run):
                params = run.request.params
                constraint = self._constraint_for(run)
                sampler = Sampler(params, self.backend.info.vocab_size, self._breakers_for(params), constraint)
                decoder = Detokenizer(self._tokenizer, continues=True)
                writer = Writer(decoder, params.stop, run.request.reasoning, run.request.tools)
                if self._alone:
                    self.backend.forget()
                try:
                    run.open(self.backend, sampler, writer, reuse=not self._alone)
                except LimitExceeded:
                    if not self._open:
                        raise
                    self._waiting.appendleft(run)
                    break
                run.pilot = self._pilot(run, sampler, constraint)
                self._open.append(run)
                moving += 1
        self._waiting.extendleft(reversed(held))

    def _fits(self, run: Run) -> bool:
        """Whether the keys and values of all that are open, and of this one, fit at their longest."""
        info = self.backend.info
        if not (self._open and info.kv_budget):
            return True
        longest = sum(each.longest for each in (*self._open, run))
        return longest * info.kv_bytes_per_token <= info.kv_budget

    def _constraint_for(self, run: Run) -> Constraint | None:
        if not run.request.grammar:
            return None
        self._structure = self._structure or Structure(self._tokenizer)
        return self._structure.constraint(run.request.grammar, run.end_ids, self.backend.info.vocab_size)

    def _pilot(self, run: Run, sampler: Sampler, constraint: Constraint | None) -> Pilot | None:
        request = run.request
        if self._speculation is None or request.speculation == OFF:
            return None
        guesser = Guesser(sampler, self.backend.info.vocab_size)
        text = Text(request.ids, request.params.temperature, constraint, guesser, lambda: run.state)
        return self._speculation.pilot(text, request.speculation)

    def _breakers_for(self, params: SamplingParams) -> Breakers | None:
        if params.dry_multiplier == 0:
            return None
        texts = tuple(params.dry_breakers)
        if texts not in self._breakers:
            self._breakers[texts] = find_breakers(self._tokenizer, texts)
        return self._breakers[texts]

    def _turn(self) -> Turn:
        """Prompts share a budget; who got some of it is last in line the next time."""
        turn: Turn = []
        served: list[Run] = []
        decoding: list[Run] = []
        budget = self._slices.size
        for run in self._open:
            if not run.outlet.ready or (run.prefilling and not budget):
                continue
            if run.prefilling:
                chunk = run.plan_prompt(budget)
                budget -= len(chunk.tokens)
                served.append(run)
                turn.append((run, chunk))
            else:
                decoding.append(run)
        self._speculate(decoding, beside_prompts=bool(served))
        turn += [(run, run.plan_token()) for run in decoding]
        self._open = [run for run in self._open if run not in served] + served
        return turn

    def _speculate(self, decoding: list[Run], beside_prompts: bool) -> None:
        """Settles who drafts in this step, and remembers what it looked like before."""
        self._candidates = []
        if self._speculation is None or not any(run.pilot for run in decoding):
            return
        if beside_prompts:
            for run in decoding:
                if run.pilot is not None:
                    run.pilot.rest()
            return
        self._candidates = [Candidate(run.pilot, 0 if run.forced else run.room, run.pipelined) for run in decoding]
        self._depth = sum(run.length for run in decoding) // len(decoding)
        self._speculation.choose(self._candidates, self._depth)

    def _account(self, turn: Turn, seconds: float) -> None:
        """Tells the size of slices and speculation how long the step took."""
        if turn and all(chunk is not None and chunk.rows == "none" for _, chunk in turn):
            self._slices.observe(sum(run.rows for run, _ in turn), seconds)
        if self._speculation is None or not self._candidates:
            return
        drafting = any(chunk is not None and chunk.rows == "all" for _, chunk in turn)
        entered = any(
            run.pipelines and not each.pipelined for (run, _), each in zip(turn, self._candidates, strict=True)
        )
        steady = not drafting and not entered and all(chunk is not None for _, chunk in turn)
        rows = sum(run.rows for run, chunk in turn if chunk is not None)
        self._speculation.settle(self._candidates, rows, self._depth, seconds, entered and not drafting, steady)

    def _launch(self, results: list[tuple[Run, Chunk | None, Any]]) -> None:
        tokens: list[Any] = []
        for run, chunk, logits in results:
            with _contained(run):
                tokens += run.launch(chunk, logits)
        if tokens:
            import mlx.core

            mlx.core.async_eval(*tokens)  # type: ignore[no-untyped-call]


def _fail(turn: Turn, error: Exception) -> None:
    for run, _ in turn:
        with _contained(run):
            run.fail(error)


@contextmanager
def _contained(run: Run) -> Iterator[None]:
    """Whatever goes wrong inside is raised at the consumer of this request, and ends it alone."""
    try:
        yield
    except Exception as error:
        run.fail(error)
