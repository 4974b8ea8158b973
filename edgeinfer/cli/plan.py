"""``edgeinfer plan``: what a model would take on this machine, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.tables import facts, table, width
from edgeinfer.errors import ModelNotFound
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.loading.planner import MemoryPlan


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--context", type=click.IntRange(0), default=0, help="Tokens; 0: what loading would take.")
@click.option("--kv", default="auto", metavar="FORMAT", help="Format of keys and values. Default: auto.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, in bytes and tokens.")
def command(name: str, context: int, kv: str, as_json: bool) -> None:
    """Say what MODEL takes: weights, keys and values by format, scratch, and the longest context that fits.

    Only the header is read. Ends with exit code 4 where loading it so would be refused.
    """
    from edgeinfer.formats.gguf import open_gguf
    from edgeinfer.hub.sources import find
    from edgeinfer.loading.planner import plan
    from edgeinfer.settings import load_settings

    model = find(name, load_settings())
    if model is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with: edgeinfer pull {name}")
    with open_gguf(model.path) as file:
        found = plan(file, model.name, context, kv)
    click.echo(json.dumps(asdict(found) | {"total": found.total, "fits": found.fits}) if as_json else _shown(found))
    found.check()


def _shown(found: MemoryPlan) -> str:
    total = f"{human_bytes(found.total)} of {human_bytes(found.available)} that are free"
    rows = [
        ("model", found.name),
        ("context", f"{found.context:,} tokens, trained for {found.trained_context:,}"),
        ("kv", f"{found.kv}: {found.reason}"),
        ("weights", human_bytes(found.weights)),
        ("keys, values", human_bytes(found.formats[found.kv].kv)),
        ("scratch", human_bytes(found.scratch)),
        ("total", total if found.fits else f"{total}: does not fit"),
    ]
    cells = [
        (
            f"{'*' if each.format == found.kv else ' '} {each.format}",
            human_bytes(each.kv),
            f"{each.per_token:,}",
            human_bytes(each.total),
            f"{each.longest:,}" if each.longest else "none fits",
        )
        for each in found.formats.values()
    ]
    head = ("  format", "keys, values", "bytes a token", "total", "longest context")
    return facts(rows, width()) + "\n\n" + table(head, cells, width(), frozenset((1, 2, 3, 4)))
