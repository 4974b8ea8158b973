"""``edgeinfer batch``: a file of prompts in, a file of answers out. Progress goes to stderr, nothing to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.options import model_options, sampling_options
from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.terminal import note
from edgeinfer.errors import BadRequest
from edgeinfer.sanitize import sanitize
from edgeinfer.types import SamplingParams
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.batch import BatchPlan, BatchProgress, BatchResult

ROWS_FAILED = 3  # exit code


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the answers go.")
@click.option(
    "--plan", is_flag=True, help="Say what the batch would take, and run nothing; fetches the model for its tokenizer."
)
@click.option("--raw", is_flag=True, help="Continue plain prompts as they are, without a chat template.")
@click.option("--ordered", is_flag=True, help="Put the answers in the order of the input, once all are there.")
@click.option(
    "--on-error", type=click.Choice(["skip", "stop"]), default="skip", help="When a row fails. Default: skip."
)
@click.option("--max-rows", type=click.IntRange(1), help="Only the first rows of the input.")
@click.option("--receipts", is_flag=True, help="Put into every answer what it was made of, for `edgeinfer replay`.")
@click.option("--ray", "workers", type=click.IntRange(1), help="Through Ray, with so many engines (edgeinfer[ray]).")
@click.option("--deterministic", is_flag=True, help="No row depends on another, on any backend; slower on some.")
@click.option("--json-progress", is_flag=True, help="Progress as JSON lines on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@model_options
@sampling_options
def command(
    source: Path,
    output: Path | None,
    plan: bool,
    raw: bool,
    ordered: bool,
    on_error: str,
    max_rows: int | None,
    receipts: bool,
    workers: int | None,
    deterministic: bool,
    json_progress: bool,
    quiet: bool,
    model: str,
    backend: str | None,
    kv: str,
    context: int,
    threads: int,
    params: SamplingParams,
) -> int:
    """Answer every row of IN: .jsonl (OpenAI batch lines, prompts or messages), .csv, .tsv or .txt.

    Stop it at any moment and give the same command again: it goes on where it was. Rows that fail go to
    NAME.errors.jsonl beside the output, and the exit code is 3.
    """
    from edgeinfer import batch

    if plan:
        with download_progress() as on_progress:
            planned = batch.plan_batch(
                source, model, context=context, raw=raw, max_rows=max_rows, on_progress=on_progress, params=params
            )
        click.echo(sanitize(_planned(planned)))
        return 0
    if output is None:
        raise BadRequest("no output: give -o FILE, or --plan to see what the batch would take", "output")
    show = _Json() if json_progress else _Silent() if quiet else _Line()
    run: Any = batch.run_batch
    if workers is not None:
        from edgeinfer.batch import ray

        run = partial(ray.run_batch, workers=workers)
    with download_progress() as on_progress, _told_of_ctrl_c():
        result = run(
            source,
            output,
            model,
            raw=raw,
            ordered=ordered,
            on_error="stop" if on_error == "stop" else "skip",
            max_rows=max_rows,
            receipts=receipts,
            on_progress=show.progress,
            load_options={
                "backend": backend or "",
                "kv": kv,
                "context": context,
                "threads": threads,
                "deterministic": deterministic,
                "on_progress": on_progress,
            },
            params=params,
        )
    show.result(result, output)
    return ROWS_FAILED if result.failed else 0


@contextmanager
def _told_of_ctrl_c() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        note("\nstopped; the same command goes on from here")
        raise


def _planned(plan: BatchPlan) -> str:
    rows = (
        ("rows", f"{plan.rows:,}, of them {plan.bad:,} that cannot be answered"),
        ("repeats", f"{plan.repeated:,} ask the same as an earlier row"),
        ("too long", f"{plan.too_long:,} do not fit the context of {plan.context:,} tokens"),
        ("prompts", f"{plan.prompt_tokens:,} tokens; half have {plan.median:,} or fewer, the longest {plan.longest:,}"),
        ("shared", f"{plan.shared_tokens:,} of them begin a prompt like the one before, and are computed once"),
        ("answers", f"at most {plan.answer_tokens:,} tokens"),
        ("memory", f"about {human_bytes(plan.memory)}, {human_bytes(plan.free)} are free"),
        ("time", f"{_duration(plan.seconds)} at the very least, if every answer takes all its tokens"),
    )
    return "\n".join(f"{name:9} {value}" for name, value in rows)


class _Silent:
    def progress(self, progress: BatchProgress) -> None:
        pass

    def result(self, result: BatchResult, output: Path) -> None:
        pass


class _Json:
    """``{"event": "progress", …}`` lines, and one of ``result``."""

    def progress(self, progress: BatchProgress) -> None:
        click.echo(json.dumps({"event": "progress", **asdict(progress)}), err=True)

    def result(self, result: BatchResult, output: Path) -> None:
        click.echo(json.dumps({"event": "result", **asdict(result)}), err=True)


class _Line:
    """One line that is written over on a terminal; elsewhere one every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0

    def progress(self, progress: BatchProgress) -> None:
        if self._terminal:
            click.echo(f"\r\x1b[K{_described(progress)}", err=True, nl=False)
        elif progress.seconds >= self._next:
            self._next = progress.seconds + 10
            note(_described(progress))

    def result(self, result: BatchResult, output: Path) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
        earlier = f" ({result.resumed} by earlier runs)" if result.resumed else ""
        failed = f", {result.failed} failed, see {output.stem}.errors.jsonl" if result.failed else ""
        stopped = ", stopped at the first failure" if result.stopped else ""
        made = f" · {result.tokens} tokens · {result.tokens / result.seconds:.1f} tokens/s" if result.tokens else ""
        note(f"{result.done} rows done{earlier}{failed}{stopped}{made}")


def _described(progress: BatchProgress) -> str:
    total = f" of {progress.total}" if progress.total is not None else ""
    parts = [f"{progress.done}{total} rows"]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.tokens:
        parts.append(f"{progress.tokens_per_second:.1f} tokens/s")
    if progress.seconds_left is not None:
        parts.append(f"{_duration(progress.seconds_left)} left")
    if progress.memory:
        parts.append(f"{human_bytes(progress.memory)} memory")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
