"""Offline batches: a file of prompts in, a file of answers out, safe to kill at any moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from edgeinfer.batch.book import Book
from edgeinfer.batch.job import BatchProgress, BatchResult, Job
from edgeinfer.batch.plan import BatchPlan, plan
from edgeinfer.batch.run import Run
from edgeinfer.errors import BadInput, BadRequest
from edgeinfer.generation.options import Options
from edgeinfer.hub.sources import Progress
from edgeinfer.llm import LLM, load, outline
from edgeinfer.settings import load_settings

__all__ = ["BatchPlan", "BatchProgress", "BatchResult", "plan_batch", "run_batch"]


def run_batch(
    input: str | PathLike[str],  # noqa: A002
    output: str | PathLike[str],
    model: str | LLM = "",
    *,
    raw: bool = False,
    ordered: bool = False,
    on_error: Literal["skip", "stop"] = "skip",
    max_rows: int | None = None,
    receipts: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    load_options: dict[str, Any] | None = None,
    **options: Any,
) -> BatchResult:
    """Answers every row of ``input`` and appends the answers to ``output``; given again, it goes on where it ended.

    input: ``.jsonl`` of OpenAI batch lines, ``{"prompt": …}`` or ``{"messages": …}``; ``.csv`` or ``.tsv`` with such
    columns; ``.txt`` with a prompt a line. output: OpenAI-shaped lines, in the order in which rows end, or with
    ``ordered`` in that of the input once all are done. Rows that fail go to ``NAME.errors.jsonl`` with their line and
    the reason, and are not tried again; with ``on_error="stop"`` the first of them ends the run.

    model: what ``load`` takes, or a loaded model, which stays open. raw: plain prompts are continued as they are.
    max_rows: only the first rows of the input. receipts: put into every answer what it was made of, for
    ``edgeinfer replay``. load_options go to ``load``, where ``isolate`` is on: a row that brings
    the engine down fails alone. Further options are those of ``LLM.stream``; a row's own go before them. A row
    without a seed gets one that its id and body decide.

    Raises BadInput for files that cannot be used, DiskLimit when the disk is full, and what ``load`` raises.
    """
    if on_error not in ("skip", "stop"):
        raise BadRequest(f"on_error={on_error!r}: expected 'skip' or 'stop'", "on_error")
    if max_rows is not None and max_rows < 1:
        raise BadRequest(f"max_rows={max_rows}: expected 1 or more", "max_rows")
    Options.parse(options)
    job = Job(Path(input), Path(output), options, raw, ordered, on_error, max_rows, receipts)
    _check_paths(job)
    with ExitStack() as stack:
        if isinstance(model, LLM):
            given = model
            return Run(Book(job, given.name, on_progress), lambda: given).work()
        name = model or load_settings().model
        book = Book(job, name, on_progress)
        return Run(book, lambda: stack.enter_context(load(name, **{"isolate": True, **(load_options or {})}))).work()


def plan_batch(
    input: str | PathLike[str],  # noqa: A002
    model: str = "",
    *,
    context: int = 0,
    raw: bool = False,
    max_rows: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> BatchPlan:
    """What ``run_batch`` with the same arguments would take: every row is read and tokenized, no weights are loaded.

    Raises BadInput for a file that cannot be used, and what ``load`` raises for a model that MLX cannot run.
    """
    Options.parse(options)
    job = Job(Path(input), Path(input), options, raw, False, "skip", max_rows)
    with closing(outline(model or load_settings().model, context, on_progress)) as header:
        return plan(job, header)


def _check_paths(job: Job) -> None:
    if not job.input.exists():
        raise BadInput(f"{job.input}: there is no such file")
    for path in (job.output, job.errors):
        if path.exists() and path.samefile(job.input):
            raise BadInput(f"{path.name} is the input itself; name another output file")
