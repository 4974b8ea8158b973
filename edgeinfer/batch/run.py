"""One run over an input file: rows in, answers and errors out, with as many rows in the engine as it can use."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

from edgeinfer import types
from edgeinfer.batch.book import Book
from edgeinfer.batch.job import BatchResult, Job
from edgeinfer.batch.ledger import by_prefix
from edgeinfer.batch.rows import Row
from edgeinfer.batch.shapes import answer_line
from edgeinfer.errors import BadRequest, ContextLimit, EngineCrashed, TemplateFailed
from edgeinfer.llm import LLM
from edgeinfer.types import Finished, Reply, ReplyBuilder

WINDOW = 32
"""Rows in the engine at one time, those that wait for their turn included."""
MOST_CRASHES = 4
"""Rows in a row that may crash the engine before the run ends."""
_TICK = 0.25  # seconds between looks at the clock while waiting for a row


class RowOutlet:
    """Collects one row's events on the engine's thread and hands the end over."""

    ready = True

    def __init__(self, row: Row, ended: SimpleQueue[tuple[Row, Reply | BaseException]], abandoned: Event) -> None:
        self.submitted = time.perf_counter()
        self._row = row
        self._ended = ended
        self._abandoned = abandoned
        self._builder = ReplyBuilder()

    @property
    def cancelled(self) -> bool:
        return self._abandoned.is_set()

    def put(self, event: types.Event) -> None:
        self._builder.add(event)
        if isinstance(event, Finished) and event.finish_reason != "error":
            self._ended.put((self._row, self._builder.reply()))

    def fail(self, error: BaseException) -> None:
        self._ended.put((self._row, error))


class Run:
    """The rows of a book through one engine."""

    def __init__(self, book: Book, open_model: Callable[[], LLM]) -> None:
        self._book = book
        self._open_model = open_model
        self._ended: SimpleQueue[tuple[Row, Reply | BaseException]] = SimpleQueue()
        self._abandoned = Event()  # nobody waits for the rows that are running
        self._suspects: deque[Row] = deque()
        self._crashes = 0  # rows that crashed the engine since the last answer
        self._running = 0
        self._llm: LLM | None = None

    def work(self) -> BatchResult:
        """Runs to the end of the input. Whatever interrupts it, what was written stays and the next run goes on."""
        with ExitStack() as stack:
            stack.callback(self._abandoned.set)
            stack.enter_context(self._book)
            for row in by_prefix(self._book.todo()):
                while self._running >= WINDOW:
                    self._settle_one(alone=False)
                self._clear_suspects()
                if self._book.halted():
                    break
                self._start(row)
            self._clear_suspects(last=True)
            return self._book.finish()

    def _start(self, row: Row) -> None:
        if row.problem:
            self._book.fail(row, row.problem)
            return
        if self._llm is None:
            self._llm = self._open_model()
            self._book.memory = self._llm.memory_in_use
        try:
            self._llm.submit(
                row.prompt, RowOutlet(row, self._ended, self._abandoned), **self._book.job.options_for(row)
            )
        except (BadRequest, TemplateFailed, ContextLimit) as error:
            self._book.fail(row, error)
        else:
            self._running += 1

    def _clear_suspects(self, last: bool = False) -> None:
        """Runs the rows that were in the engine when it crashed once more, each alone, to find the one that did it."""
        if not (self._suspects or last):
            return
        self._drain()
        while self._suspects and not self._book.halted():
            self._start(self._suspects.popleft())
            self._drain(alone=True)

    def _drain(self, alone: bool = False) -> None:
        while self._running:
            self._settle_one(alone)

    def _settle_one(self, alone: bool) -> None:
        """Waits for the end of one row and writes it down. A crash condemns a row only where it was alone."""
        row, outcome = self._next_end()
        self._running -= 1
        if isinstance(outcome, Reply):
            assert self._llm is not None
            self._crashes = 0
            line = answer(self._book.job, self._book.fingerprint, self._llm, row, outcome)
            self._book.answer(line, outcome.usage.completion)
        elif isinstance(outcome, EngineCrashed) and not alone:
            self._suspects.append(row)
        else:
            self._count_crash(outcome)
            self._book.fail(row, outcome)
        self._book.tick()

    def _next_end(self) -> tuple[Row, Reply | BaseException]:
        while True:
            try:
                return self._ended.get(timeout=_TICK)
            except Empty:
                self._book.tick()

    def _count_crash(self, outcome: BaseException) -> None:
        """Gives up where the engine crashes on row after row: then it is not the rows."""
        if isinstance(outcome, EngineCrashed):
            self._crashes += 1
            if self._crashes == MOST_CRASHES:
                raise outcome


def answer(job: Job, fingerprint: str, llm: LLM, row: Row, reply: Reply) -> dict[str, Any]:
    """The output line of an answered row."""
    receipt = llm.receipt(row.prompt, reply, **job.options_for(row)) if job.receipts else None
    return answer_line(row, reply, llm.name, fingerprint, receipt)
