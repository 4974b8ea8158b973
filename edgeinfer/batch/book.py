"""The record of a run: which rows are answered, what is written, how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from edgeinfer.batch.job import BatchProgress, BatchResult, Job
from edgeinfer.batch.journal import Journal
from edgeinfer.batch.ledger import Ledger
from edgeinfer.batch.rows import Row
from edgeinfer.batch.shapes import error_line, is_answer_line, is_error_line, line_number

_PROGRESS_SECONDS = 0.5


class Book:
    """Holds both output files while it is open; it alone writes them."""

    def __init__(self, job: Job, model: str, on_progress: Callable[[BatchProgress], None] | None) -> None:
        self.job = job
        self.fingerprint = job.fingerprint(model)
        self.memory: Callable[[], int] = int  # bytes that engines hold, where the run knows
        self._on_progress = on_progress
        self._ledger = Ledger()
        self._failed_here = 0
        self._failed = self._done = self._resumed = self._tokens = 0
        self._total: int | None = None
        self._began = self._reported = time.monotonic()
        self._files = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            answers, errors = self.job.output, self.job.errors
            self._answers = stack.enter_context(Journal(answers, self._check_answer, time.monotonic))
            self._errors = stack.enter_context(Journal(errors, self._check_error, time.monotonic, keep_empty=False))
            self._ledger.recover(self._answers, self._errors)
            self._files = stack.pop_all()
        self._done = self._resumed = len(self._ledger.answered)
        self._failed = len(self._ledger.reported)
        self._total = self.job.count()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def halted(self) -> bool:
        """Whether a failed row ended the run."""
        return self.job.on_error == "stop" and self._failed_here > 0

    def todo(self) -> Iterator[Row]:
        """The rows that are neither answered nor reported."""
        return self._ledger.todo(self.job.rows(), self.job.output.name)

    def answer(self, line: Mapping[str, Any], tokens: int) -> None:
        self._tokens += tokens
        self._done += 1
        self._answers.append(line)

    def fail(self, row: Row, error: BaseException | str) -> None:
        self.fail_line(error_line(row, error, self.fingerprint))

    def fail_line(self, line: Mapping[str, Any]) -> None:
        self._failed += 1
        self._failed_here += 1
        self._errors.append(line)

    def tick(self) -> None:
        """What a clock asks for: files synced, progress told."""
        self._answers.sync_if_due()
        self._errors.sync_if_due()
        self.report()

    def finish(self) -> BatchResult:
        if self.job.ordered:
            self._answers.sort(line_number)
        self.report(last=True)
        seconds = time.monotonic() - self._began
        return BatchResult(self._done, self._failed, self._resumed, self._tokens, seconds, self.halted())

    def report(self, last: bool = False) -> None:
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
                memory=self.memory(),
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
        return "" if fingerprint == self.fingerprint else "made with another model or other options"
