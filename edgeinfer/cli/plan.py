"""``edgeinfer plan``: what a model would take on this machine, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.tables import facts, table, width
from edgeinfer.errors import ModelNotFound
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.loading.planner import MemoryPlan
    from edgeinfer.loading.prices import Price


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--context", type=click.IntRange(0), default=0, help="Tokens; 0: what loading would take.")
@click.option("--kv", default="auto", metavar="FORMAT", help="Format of keys and values. Default: auto.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, in bytes and tokens.")
def command(name: str, context: int, kv: str, as_json: bool) -> None:
    """Say what MODEL takes: weights, keys and values by format, scratch, and the longest context that fits.

    A format's first and latest tokens stay exact; "a further token" is what each of the others takes, beside its share
    of float16. Only the header is read. Ends with exit code 4 where loading it so would be refused.
    """
    from edgeinfer.converted.opening import open_model
    from edgeinfer.hub.sources import find
    from edgeinfer.loading.planner import plan
    from edgeinfer.loading.prices import prices
    from edgeinfer.settings import load_settings

    settings = load_settings()
    model = find(name, settings)
    if model is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with: edgeinfer pull {name}")
    with open_model(model.path) as file:
        found = plan(file, model.name, context, kv)
        known = prices(settings.paths.measured, model.path, file.parameters)
    if as_json:
        costs = {each: asdict(known[each]) for each in found.formats if each in known}
        click.echo(json.dumps(asdict(found) | {"total": found.total, "fits": found.fits, "kl": costs}))
    else:
        click.echo(_shown(found, known))
    found.check()


def _shown(found: MemoryPlan, known: Mapping[str, Price]) -> str:
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
    exact = max(1, found.formats["exact"].per_token)
    cells = [
        (
            f"{'*' if each.format == found.kv else ' '} {each.format}",
            human_bytes(each.kv),
            f"{each.per_token:,} B · {each.per_token / exact:.2f}",
            human_bytes(each.total),
            f"{each.longest:,}" if each.longest else "none fits",
            f"{known[each.format].kl:.4f}" if each.format in known else "?",
        )
        for each in found.formats.values()
    ]
    head = ("  format", "keys, values", "a further token", "total", "longest context", "KL")
    shown = table(head, cells, width(), frozenset(range(1, len(head))))
    return f"{facts(rows, width())}\n\n{shown}\n\n{_origin(found, known)}"


def _origin(found: MemoryPlan, known: Mapping[str, Price]) -> str:
    """Where the prices come from, and how to have others."""
    places = dict.fromkeys(known[each].where for each in found.formats if each in known)
    advice = "" if all(not price.model for price in known.values()) else f"; yours: edgeinfer eval kv {found.name}"
    return f"KL from float16 with nothing kept exact, {' or '.join(places)}{advice}"
