"""One run over an input file: rows in, answers and errors out, with as many rows in the engine as it can use."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Literal

from edgeinfer import types
from edgeinfer.batch.journal import Journal
from edgeinfer.batch.ledger import Ledger, by_prefix
from edgeinfer.batch.rows import Row, parse
from edgeinfer.batch.shapes import answer_line, error_line, is_answer_line, is_error_line, line_number
from edgeinfer.batch.source import count_rows, read_rows
from edgeinfer.errors import BadRequest, ContextLimit, EngineCrashed, TemplateFailed
from edgeinfer.llm import LLM
from edgeinfer.types import Finished, Reply, ReplyBuilder

WINDOW = 32
"""Rows in the engine at one time, those that wait for their turn included."""
MOST_CRASHES = 4
"""Rows in a row that may crash the engine before the run ends."""
_TICK = 0.25  # seconds between looks at the clock while waiting for a row
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a run has come. Rows of earlier runs count as done; rates are of this run alone."""

    done: int
    failed: int
    total: int | None  # rows of the input; None where it cannot be read twice
    tokens: int  # made by this run
    tokens_per_second: float
    seconds: float
    seconds_left: float | None
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a run came to. ``done`` and ``failed`` include earlier runs'; ``resumed`` counts those of ``done``."""

    done: int
    failed: int
    resumed: int
    tokens: int
    seconds: float
    stopped: bool  # by on_error="stop"


@dataclass(frozen=True, slots=True)
class Job:
    """What to do; the same job given twice goes on where the first run ended."""

    input: Path
    output: Path
    options: Mapping[str, Any]
    raw: bool
    ordered: bool
    on_error: Literal["skip", "stop"]
    max_rows: int | None
    receipts: bool = False

    @property
    def errors(self) -> Path:
        """Where failed rows go: ``out.errors.jsonl`` beside ``out.jsonl``."""
        return self.output.with_name(f"{self.output.stem}.errors.jsonl")

    def rows(self) -> Iterator[Row]:
        """The rows of the input, bad ones included."""
        return (parse(raw, self.raw) for raw in islice(read_rows(self.input), self.max_rows))

    def count(self) -> int | None:
        rows = count_rows(self.input)
        return rows if rows is None or self.max_rows is None else min(rows, self.max_rows)

    def fingerprint(self, model: str) -> str:
        """What makes two runs one job: the model and the options that rows start from."""
        text = json.dumps([model, self.raw, sorted(self.options.items())], default=str)
        return f"edgeinfer-{blake2b(text.encode(), digest_size=8).hexdigest()}"


class _Outlet:
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
    """The state of one run."""

    def __init__(
        self, job: Job, open_model: Callable[[], LLM], model: str, on_progress: Callable[[BatchProgress], None] | None
    ) -> None:
        self._job = job
        self._open_model = open_model
        self._model = model
        self._fingerprint = job.fingerprint(model)
        self._on_progress = on_progress
        self._ledger = Ledger()
        self._ended: SimpleQueue[tuple[Row, Reply | BaseException]] = SimpleQueue()
        self._abandoned = Event()  # nobody waits for the rows that are running
        self._suspects: deque[Row] = deque()
        self._crashes = 0  # rows that crashed the engine since the last answer
        self._running = 0
        self._llm: LLM | None = None
        self._failed = self._done = self._resumed = self._tokens = 0
        self._total: int | None = None
        self._began = self._reported = time.monotonic()
        self._halted = False

    def work(self) -> BatchResult:
        """Runs to the end of the input. Whatever interrupts it, what was written stays and the next run goes on."""
        with ExitStack() as stack:
            stack.callback(self._abandoned.set)
            self._answers = stack.enter_context(Journal(self._job.output, self._check_answer, time.monotonic))
            self._errors = stack.enter_context(
                Journal(self._job.errors, self._check_error, time.monotonic, keep_empty=False)
            )
            self._ledger.recover(self._answers, self._errors)
            self._done = self._resumed = len(self._ledger.answered)
            self._failed = len(self._ledger.reported)
            self._total = self._job.count()
            for row in by_prefix(self._ledger.todo(self._job.rows(), self._job.output.name)):
                while self._running >= WINDOW:
                    self._settle_one(alone=False)
                self._clear_suspects()
                if self._halted:
                    break
                self._start(row)
            self._clear_suspects(last=True)
            if self._job.ordered:
                self._answers.sort(line_number)
            self._report(last=True)
        seconds = time.monotonic() - self._began
        return BatchResult(self._done, self._failed, self._resumed, self._tokens, seconds, self._halted)

    def _start(self, row: Row) -> None:
        if row.problem:
            self._fail(row, row.problem)
            return
        if self._llm is None:
            self._llm = self._open_model()
        try:
            self._llm.submit(row.prompt, _Outlet(row, self._ended, self._abandoned), **self._options(row))
        except (BadRequest, TemplateFailed, ContextLimit) as error:
            self._fail(row, error)
        else:
            self._running += 1

    def _options(self, row: Row) -> dict[str, Any]:
        options = {**self._job.options, **row.options}
        if options.get("seed", getattr(options.get("params"), "seed", None)) is None:
            options["seed"] = row.seed
        return options

    def _clear_suspects(self, last: bool = False) -> None:
        """Runs the rows that were in the engine when it crashed once more, each alone, to find the one that did it."""
        if not (self._suspects or last):
            return
        self._drain()
        while self._suspects and not self._halted:
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
            self._tokens += outcome.usage.completion
            self._done += 1
            self._crashes = 0
            receipt = self._llm.receipt(row.prompt, outcome, **self._options(row)) if self._job.receipts else None
            self._answers.append(answer_line(row, outcome, self._llm.name, self._fingerprint, receipt))
        elif isinstance(outcome, EngineCrashed) and not alone:
            self._suspects.append(row)
        else:
            self._count_crash(outcome)
            self._fail(row, outcome)
        self._report()

    def _next_end(self) -> tuple[Row, Reply | BaseException]:
        while True:
            try:
                return self._ended.get(timeout=_TICK)
            except Empty:
                self._answers.sync_if_due()
                self._errors.sync_if_due()
                self._report()

    def _count_crash(self, outcome: BaseException) -> None:
        """Gives up where the engine crashes on row after row: then it is not the rows."""
        if isinstance(outcome, EngineCrashed):
            self._crashes += 1
            if self._crashes == MOST_CRASHES:
                raise outcome

    def _fail(self, row: Row, error: BaseException | str) -> None:
        self._failed += 1
        self._errors.append(error_line(row, error, self._fingerprint))
        self._halted = self._job.on_error == "stop"

    def _report(self, last: bool = False) -> None:
        now = time.monotonic()
        if self._on_progress is None or not (last or now - self._reported >= _PROGRESS_SECONDS):
            return
        self._reported = now
        seconds = now - self._began
        answered = self._done - self._resumed
        left = None if self._total is None else max(0, self._total - self._done - self._failed)
        self._on_progress(
            BatchProgress(
                done=self._done,
                failed=self._failed,
                total=self._total,
                tokens=self._tokens,
                tokens_per_second=self._tokens / seconds if seconds > 0 else 0.0,
                seconds=seconds,
                seconds_left=left * seconds / answered if left is not None and answered else None,
                memory=self._llm.memory_in_use() if self._llm else 0,
            )
        )

    def _check_answer(self, line: Mapping[str, Any]) -> str:
        if not is_answer_line(line):
            return "not an answer that edgeinfer batch wrote"
        return self._check_job(line["response"]["body"]["system_fingerprint"])

    def _check_error(self, line: Mapping[str, Any]) -> str:
        if not is_error_line(line):
            return "not an error that edgeinfer batch wrote"
        return self._check_job(line["system_fingerprint"])

    def _check_job(self, fingerprint: str) -> str:
        return "" if fingerprint == self._fingerprint else "made with another model or other options"
