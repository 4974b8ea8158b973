"""A batch over several processes or machines: Ray Data hands rows to workers, each with an engine of its own.

Needs ``edgeinfer[ray]``. Files, resuming and rules are those of ``edgeinfer.run_batch``, and the driver alone writes:
what one of them began, the other goes on with. Each machine finds or fetches the model by itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, Literal

from edgeinfer.batch.book import Book
from edgeinfer.batch.job import BatchProgress, BatchResult, Job
from edgeinfer.batch.ledger import by_prefix
from edgeinfer.batch.rows import Row
from edgeinfer.batch.run import RowOutlet, answer
from edgeinfer.batch.shapes import error_line
from edgeinfer.errors import BackendUnavailable, BadRequest, ContextLimit, TemplateFailed
from edgeinfer.generation.options import Options
from edgeinfer.hub.sources import resolve
from edgeinfer.llm import load
from edgeinfer.settings import load_settings
from edgeinfer.types import Reply

ROWS_A_TASK = 16
"""What a worker takes at a time and answers together."""
ROWS_A_ROUND = 4096
"""What the driver hands to Ray at a time, so that an input of any length fits its memory."""
_INSTALL = "pip install 'edgeinfer[ray]'"


def run_batch(
    input: str | PathLike[str],  # noqa: A002
    output: str | PathLike[str],
    model: str = "",
    *,
    workers: int = 2,
    cpus: float = 1,
    gpus: float = 0,
    raw: bool = False,
    ordered: bool = False,
    on_error: Literal["skip", "stop"] = "skip",
    max_rows: int | None = None,
    receipts: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    load_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> BatchResult:
    """``edgeinfer.run_batch`` with ``workers`` engines; ``cpus`` and ``gpus`` are what Ray sets aside for each.

    Ray is started here, or joined where ``ray.init`` or RAY_ADDRESS says. Raises BackendUnavailable where it is not
    installed, and what ``edgeinfer.run_batch`` raises.
    """
    for name, value in (("workers", workers), ("max_rows", max_rows)):
        if value is not None and value < 1:
            raise BadRequest(f"{name}={value}: expected 1 or more", name)
    data = _ray_data()
    Options.parse(options)
    job = Job(Path(input), Path(output), options, raw, ordered, on_error, max_rows, receipts)
    name = model or load_settings().model
    fingerprint = job.fingerprint(name)
    loading = dict(load_options or {})
    resolve(name, load_settings(), on_progress=loading.pop("on_progress", None))
    loading["threads"] = loading.get("threads") or max(1, int(cpus))
    worker = (job, fingerprint, name, loading)
    with Book(job, name, on_progress) as book:
        rows = by_prefix(book.todo())
        while not book.halted() and (part := list(islice(rows, ROWS_A_ROUND))):
            for row in (row for row in part if row.problem):
                book.fail(row, row.problem)
            askable = [{"row": _packed(row)} for row in part if not row.problem]
            for line, tokens in _answers(data, askable, workers, cpus, gpus, worker) if askable else ():
                if line["error"] is None:
                    book.answer(line, tokens)
                else:
                    book.fail_line(line)
                book.tick()
                if book.halted():
                    break
        return book.finish()


def _answers(
    data: Any, rows: list[dict[str, str]], workers: int, cpus: float, gpus: float, worker: tuple[Any, ...]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Output lines and the tokens they took, in the order in which workers finish."""
    answered = data.from_items(rows, override_num_blocks=max(workers, len(rows) // ROWS_A_TASK)).map_batches(
        RowWorker,
        fn_constructor_args=worker,
        batch_size=ROWS_A_TASK,
        compute=data.ActorPoolStrategy(size=min(workers, len(rows))),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )
    for item in answered.iter_rows():
        yield json.loads(item["line"]), int(item["tokens"])


class RowWorker:
    """One engine in one of Ray's processes. Ray starts one that dies anew, and asks its rows again."""

    def __init__(self, job: Job, fingerprint: str, model: str, load_options: Mapping[str, Any]) -> None:
        self._job = job
        self._fingerprint = fingerprint
        self._llm = load(model, **load_options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Answers all rows of a batch together."""
        ended: SimpleQueue[tuple[Row, Reply | BaseException]] = SimpleQueue()
        rows = [Row(**json.loads(text)) for text in batch["row"]]
        for row in rows:
            try:
                outlet = RowOutlet(row, ended, Event())
                self._llm.submit(row.prompt, outlet, **self._job.options_for(row))
            except (BadRequest, TemplateFailed, ContextLimit) as error:
                ended.put((row, error))
        lines, tokens = [], []
        for _ in rows:
            row, outcome = ended.get()
            lines.append(json.dumps(self._line(row, outcome)))
            tokens.append(outcome.usage.completion if isinstance(outcome, Reply) else 0)
        return {"line": lines, "tokens": tokens}

    def _line(self, row: Row, outcome: Reply | BaseException) -> dict[str, Any]:
        if isinstance(outcome, Reply):
            return answer(self._job, self._fingerprint, self._llm, row, outcome)
        return error_line(row, outcome, self._fingerprint)


def _packed(row: Row) -> str:
    """A row as JSON, whose prompt is text or messages."""
    return json.dumps(asdict(row))


def _ray_data() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise BackendUnavailable(f"ray is not installed; install it with: {_INSTALL}", _INSTALL) from None
    if not ray.is_initialized():
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    for name in ("ray", "ray.data"):  # the batch tells of its own progress
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray.data
