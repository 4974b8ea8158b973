"""``edgeinfer bench speculation``: what verifying rows costs here, and what each drafter gives on each task."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import table, width
from edgeinfer.cli.terminal import note

if TYPE_CHECKING:
    from edgeinfer.bench.speculation import Measured, Outcome
    from edgeinfer.bench.statistics import Spread


@click.command()
@click.argument("model", required=False, default="")
@click.option("--backend", type=click.Choice(["auto", "mlx", "llama.cpp"]), default="auto", help="Default: auto.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Measurements of each figure. Default: 5.")
@click.option("--tokens", type=click.IntRange(8, 1024), default=256, help="Tokens of each answer. Default: 256.")
@click.option("--draft-model", default="", metavar="MODEL", help="A second, smaller model to compare.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of tables.")
def command(model: str, backend: str, threads: int, rounds: int, tokens: int, draft_model: str, as_json: bool) -> None:
    """Measure what drafts are worth with MODEL (default: the starter model), in turn with plain decoding.

    "suffix" drafts from the text alone, "suffix + store" from earlier answers as well, which after the first round hold
    the very same one: a job that is repeated; what else the model has drafts beside them. "worst" is the least speedup
    over any 512 tokens in a row, "thinking" the share of time that choosing drafts took. Where drafts change a text, as
    they may with llama.cpp, the first difference should be a near-tie: two tokens that are all but equally likely. What
    is learned of this machine's costs is kept for later runs.
    """
    from edgeinfer.bench.speculation import bench_speculation
    from edgeinfer.hub.sources import resolve
    from edgeinfer.settings import load_settings

    settings = load_settings()
    with download_progress() as on_progress:
        files = resolve(model or settings.model, settings, on_progress=on_progress)
        draft = resolve(draft_model, settings, on_progress=on_progress).path if draft_model else None
    measured = bench_speculation(
        files.path,
        name=files.name,
        backend=backend,
        threads=threads,
        rounds=rounds,
        tokens=tokens,
        folder=settings.paths.measured,
        draft_model=draft,
        on_step=note,
    )
    click.echo(json.dumps(measured.to_json()) if as_json else tables_of(measured))


def tables_of(measured: Measured) -> str:
    """The curve, then the tasks."""
    from edgeinfer.bench.speculation import DEPTH

    machine, plain = measured.machine, measured.verify[1].median
    curve = table(
        ("rows", "ms", "of a plain step"),
        [
            (str(rows), _spread(spread, 1000), f"{spread.median / plain:.2f}")
            for rows, spread in measured.verify.items()
        ],
        width(),
        frozenset((0, 1, 2)),
    )
    tasks = table(
        ("task", "drafter", "speedup", "worst", "tokens a step", "accepted", "text", "thinking", "held back"),
        [_row(outcome) for outcome in measured.outcomes],
        width(),
        frozenset((2, 3, 4, 5, 7)),
    )
    head = f"{measured.model} on {measured.backend}, {measured.rounds} rounds\n"
    head += f"{machine.cpu}, {machine.cores} cores, load {machine.load:.1f} as the bench ended"
    return "\n\n".join((head, f"A step that verifies rows, {DEPTH} tokens deep", curve, tasks))


def _row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.task,
        outcome.drafter,
        _spread(outcome.speedup),
        f"{outcome.worst:.2f}",
        f"{outcome.tokens_per_step:.2f}",
        f"{outcome.accepted}/{outcome.drafted}",
        _same(outcome),
        f"{outcome.controller:.1%}",
        outcome.why,
    )


def _same(outcome: Outcome) -> str:
    """Where a text differs: how often, and whether the model had no preference at the first difference."""
    if outcome.same:
        return "same"
    if outcome.near_ties == outcome.different:
        return f"{outcome.different} near-ties, ≤{outcome.margin:.3f}"
    return f"{outcome.different} differ by {outcome.margin:.2f}"


def _spread(spread: Spread, factor: float = 1.0) -> str:
    return f"{factor * spread.median:.2f} ±{spread.percent:.0f}%"
