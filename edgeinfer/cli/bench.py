"""``edgeinfer bench``: this engine and others in turn, as a table with ratios, a plot, or JSON."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.terminal import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeinfer.bench.plan import Plan
    from edgeinfer.bench.session import Step


class _Bench(click.Command):
    """``bench MODEL``, and ``bench speculation MODEL`` and ``throughput``, which are commands of their own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] in (["speculation"], ["throughput"]):
            other: click.Command = import_module(f"edgeinfer.cli.bench{args[0]}").command
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_Bench)
@click.argument("model", required=False, default="")
@click.option("--against", multiple=True, metavar="ENGINE", help="llama-cpp or mlx-lm; may be repeated.")
@click.option("--quick", is_flag=True, help="A rough look of about 20 seconds, on two threads.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a table and a plot.")
@click.option("--threads", type=int, help="CPU threads of each engine; 0: physical cores.")
@click.option("--kv", help="Format of our keys and values: exact, k8v4, k4v4, … Default: exact.")
@click.option("--rounds", type=int, help="Measurements of each figure. Default: 5.")
@click.option("--depths", metavar="N,N", help="Tokens before the decoded ones, or none. Default: 0,1024,4096.")
@click.option("--prefill", metavar="N,N", help="Lengths of prompts, or none. Default: 128,512,2048.")
@click.option("--rows", metavar="N,N", help="Tokens verified in one step, or none. Default: 1,2,4,8,16.")
@click.option("--seed", type=int, help="Order of the measurements. Default: a new one, printed.")
def command(model: str, against: tuple[str, ...], quick: bool, as_json: bool, **given: Any) -> None:
    """Measure MODEL (default: the starter model) on this engine and on others, in turn in one run.

    A ratio says how many times better edgeinfer is, taken round by round: its median, and half of its range. llama.cpp
    runs with the same file and threads, with flash attention on and off; the better one counts.
    `edgeinfer bench speculation MODEL` measures what drafts are worth, `bench throughput MODEL` what batches are.
    """
    from edgeinfer.bench.plan import checked_peers
    from edgeinfer.bench.run import bench
    from edgeinfer.cli.benchtable import plots, summary, table_of
    from edgeinfer.hub.sources import resolve
    from edgeinfer.settings import load_settings

    asked = {name: value for name, value in given.items() if value is not None}
    plan = make_plan(quick, asked)
    checked_peers(against)
    settings = load_settings()
    with download_progress() as on_progress:
        files = resolve(model or settings.model, settings, on_progress=on_progress)
    signal.signal(signal.SIGTERM, _end)
    with watching() as on_step:
        report = bench(files.path, plan, against, name=files.name, asked=frozenset(asked), on_step=on_step)
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    click.echo("\n\n".join((summary(report), table_of(report), plots(report))))


def _end(number: int, frame: FrameType | None) -> None:
    """Ends in order, so that no engine and no checkpoint is left behind."""
    raise SystemExit(128 + number)


def make_plan(quick: bool, asked: dict[str, Any]) -> Plan:
    """The plan with what was asked for; a quick one where only that was. Raises BadRequest."""
    from edgeinfer.bench.plan import QUICK, Plan, parse_lengths

    changes = {"seed": random.randrange(10_000), **asked}
    for name in {"depths", "prefill", "rows"} & changes.keys():
        changes[name] = parse_lengths(changes[name], name)
    return replace(QUICK if quick else Plan(), **changes)


@contextmanager
def watching() -> Iterator[Callable[[Step], None]]:
    """Steps on stderr: a bar on a terminal, elsewhere a line when a round begins."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from tqdm import tqdm

    with tqdm(total=1, unit="", leave=False, dynamic_ncols=True, file=sys.stderr, bar_format=_BAR) as bar:

        def show(step: Step) -> None:
            bar.total = step.total
            bar.n = step.done
            bar.set_description(step.doing)

        yield show


_BAR = "{percentage:3.0f}% |{bar}| {elapsed} {desc}"


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, step: Step) -> None:
        place = step.doing.partition(":")[0]
        if place != self._last:
            self._last = place
            note(place)
