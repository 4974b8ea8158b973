"""``edgeinfer bench throughput``: rows answered together against one by one, and against llama.cpp's own batches."""

from __future__ import annotations

import json

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import table, width
from edgeinfer.cli.terminal import note


@click.command()
@click.argument("model", required=False, default="")
@click.option("--rows", type=click.IntRange(1, 1024), default=64, help="Prompts. Default: 64.")
@click.option("--tokens", type=click.IntRange(1, 1024), default=64, help="Tokens of each answer. Default: 64.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Measurements of each figure. Default: 3.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a table.")
def command(model: str, rows: int, tokens: int, threads: int, rounds: int, as_json: bool) -> None:
    """Measure how many tokens a second a batch makes with MODEL (default: the starter model).

    The same prompts one by one, together, and through llama.cpp's parallel decoding with as many sequences, in turn.
    """
    from edgeinfer.bench.throughput import TOGETHER, bench_throughput
    from edgeinfer.hub.sources import resolve
    from edgeinfer.settings import load_settings

    settings = load_settings()
    with download_progress() as on_progress:
        files = resolve(model or settings.model, settings, on_progress=on_progress)
    measured = bench_throughput(
        files.path, name=files.name, rows=rows, tokens=tokens, threads=threads, rounds=rounds, on_step=note
    )
    if as_json:
        click.echo(json.dumps(measured.to_json()))
        return
    lines = []
    for way, rate in measured.rates.items():
        gain = measured.ratios.get(way)
        shown = "" if way == TOGETHER else "-" if gain is None else f"{gain.median:.2f} ±{gain.percent:.0f}%"
        lines.append((way, f"{rate.median:.1f} ±{rate.percent:.0f}%", shown))
    machine = measured.machine
    click.echo(f"{measured.model}, {rows} rows of {tokens} tokens, {rounds} rounds")
    click.echo(f"{machine.cpu}, {machine.cores} cores, load {machine.load:.1f} as the bench ended\n")
    click.echo(table(("way", "tokens/s", "together is faster by"), lines, width(), frozenset((1, 2))))
