"""``edgeinfer list``: the models on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.tables import table, width
from edgeinfer.cli.terminal import note
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.library import LocalModel


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path))
@click.option("--catalogue", is_flag=True, help="The models that can be pulled by a short name instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list in place of a table.")
def command(folders: tuple[Path, ...], catalogue: bool, as_json: bool) -> None:
    """List models: pulled ones, those of the Hugging Face cache, LM Studio and Ollama, and those in each FOLDER.

    Any of them runs by its name or path; those of other programs are used in place and never changed.
    """
    from edgeinfer.library import on_disk

    if catalogue:
        _catalogue(as_json)
        return
    models = on_disk(folders)
    if as_json:
        click.echo(json.dumps([_row(model) for model in models], indent=1))
    elif models:
        rows = [(one.name, human_bytes(one.size), one.quant, one.architecture, one.origin) for one in models]
        click.echo(table(("NAME", "SIZE", "QUANT", "ARCH", "ORIGIN"), rows, width(), frozenset({1})))
    else:
        note("no models yet; `edgeinfer pull smollm2-135m` fetches a small one")


def _catalogue(as_json: bool) -> None:
    from edgeinfer import library
    from edgeinfer.catalog import catalogue

    rate = library.bandwidth()
    rows, told = [], []
    for entry in catalogue().values():
        size = entry.size or entry.about
        fits, speed = library.fit(size).fits, library.forecast(size, rate)
        about = "" if entry.size else "~"
        row = (entry.name, about + human_bytes(size), "fits" if fits else "too big", f"{speed:,.0f}")
        rows.append((*row, entry.license))
        told.append(asdict(entry) | {"fits": fits, "forecast": round(speed, 1)})
    if as_json:
        click.echo(json.dumps(told, indent=1))
        return
    click.echo(table(("NAME", "SIZE", "MEMORY", "TOKENS/S", "LICENCE"), rows, width(), frozenset({1, 3})))
    note("tokens/s are a forecast from this machine's memory bandwidth; `edgeinfer bench` measures")


def _row(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "size": model.size,
        "quant": model.quant,
        "architecture": model.architecture,
        "origin": model.origin,
        "source": model.source,
        "license": model.license,
        "path": str(model.path),
        "files": [str(file) for file in model.files],
    }
