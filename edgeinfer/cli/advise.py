"""``edgeinfer advise``: what limits a model's speed here at one depth, and what would change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.bars import bars
from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import table, width
from edgeinfer.cli.terminal import note
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.bench.advice import Advice

_COLUMNS = 80


@click.command()
@click.argument("model", required=False, default="")
@click.option("--context", type=click.IntRange(1), default=2048, help="Tokens of a conversation. Default: 2048.")
@click.option("--kv", default="auto", metavar="FORMAT", help="Format of keys and values. Default: auto.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Measurements; the best counts. Default: 3.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, in seconds and bytes.")
def command(model: str, context: int, kv: str, threads: int, rounds: int, as_json: bool) -> None:
    """Measure what limits MODEL (default: the starter model) at the end of a context: weights, KV cache, attention
    or the decode loop, and say what a tighter quant, a tighter KV format or drafts would change."""
    from edgeinfer.bench.advice import advise
    from edgeinfer.hub.sources import resolve
    from edgeinfer.settings import load_settings

    settings = load_settings()
    with download_progress() as on_progress:
        files = resolve(model or settings.model, settings, on_progress=on_progress)
    found = advise(files.path, context, name=files.name, kv=kv, threads=threads, rounds=rounds, on_step=note)
    click.echo(json.dumps(found.to_json()) if as_json else shown(found))


def shown(found: Advice) -> str:
    """Where a token's time goes, and what would change it."""
    parts = [(part, seconds, f"{1000 * seconds:.2f} ms") for part, seconds in found.parts.items()]
    head = (
        f"{found.model}, {found.depth:,} tokens deep, keys and values in {found.kv}: {1000 * found.step:.2f} ms a token"
        f" ({1 / found.step:.1f} tokens/s), {found.threads} threads\n{found.machine.cpu}, load "
        f"{found.machine.load:.1f}; memory is read at {found.bandwidth / 1e9:.1f} GB/s"
    )
    return "\n\n".join(
        (
            sanitize(head),
            bars("Where the time goes (the loop runs beside the rest)", [("", parts)], _COLUMNS),
            f"What binds: {found.binds}. {_because(found)}",
            table(("change", "ms a token", "faster", "how it is known"), _changes(found), width(), frozenset((1, 2))),
        )
    )


def _because(found: Advice) -> str:
    weights, cache = human_bytes(found.weight_bytes), human_bytes(found.kv_bytes)
    if found.binds == "decode loop":
        return "The host takes as long to hand a step over as it takes to compute."
    if found.binds == "weights":
        share = found.weight_read / found.parts["weights"]
        return f"Each token reads {weights} of weights; reading alone is {100 * share:.0f} % of their time."
    if found.binds == "KV cache":
        return f"Each token reads {cache} of keys and values."
    return f"Reading {cache} of keys and values is the smaller part; the arithmetic on them takes longer."


def _changes(found: Advice) -> list[tuple[str, str, str, str]]:
    rows = []
    for form, seconds in found.formats.items():
        if form != found.kv:
            rows.append((f"--kv {form}", seconds, "measured"))
    if found.tighter_quant:
        rows.append(("weights of 4.6 bits", found.step - found.tighter_quant, f"at most; now {found.bits:.1f} bits"))
    for count, seconds in found.verify.items():
        if count > 1:
            need = seconds / found.verify[1]
            known = f"measured, if all are accepted; pays from {need:.2f} tokens a step"
            rows.append((f"drafts, {count} rows a step", found.step * need / count, known))
    return [(what, f"{1000 * time:.2f}", f"{found.step / time:.2f}×", known) for what, time, known in rows]
