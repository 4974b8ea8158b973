"""``edgeinfer list``: the models on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.tables import table, width
from edgeinfer.cli.terminal import note
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.hub.sources import LocalModel


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path))
@click.option("--catalogue", is_flag=True, help="The models that can be pulled by a short name instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list in place of a table.")
def command(folders: tuple[Path, ...], catalogue: bool, as_json: bool) -> None:
    """List models: pulled ones, those of the Hugging Face cache, LM Studio and Ollama, and those in each FOLDER.

    Any of them runs by its name or path; those of other programs are used in place and never changed.
    """
    from edgeinfer.hub.local import in_folder
    from edgeinfer.hub.sources import local_models
    from edgeinfer.settings import load_settings

    if catalogue:
        _catalogue(as_json)
        return
    settings = load_settings()
    found = [model for folder in folders for model in in_folder(folder)] if folders else local_models(settings)
    models = [_with_header(model) for model in found]
    if as_json:
        click.echo(json.dumps([_row(model) for model in models], indent=1))
    elif models:
        rows = [(one.name, human_bytes(one.size), one.quant, one.architecture, one.origin) for one in models]
        click.echo(table(("NAME", "SIZE", "QUANT", "ARCH", "ORIGIN"), rows, width(), frozenset({1})))
    else:
        note("no models yet; `edgeinfer pull smollm2-135m` fetches a small one")


def _catalogue(as_json: bool) -> None:
    from edgeinfer.catalog import catalogue

    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in catalogue().values()], indent=1))
        return
    rows = [(entry.name, entry.title, entry.license) for entry in catalogue().values()]
    click.echo(table(("NAME", "TITLE", "LICENCE"), rows, width()))


def _with_header(model: LocalModel) -> LocalModel:
    """The model with what its file says of itself, where its name or manifest does not say it."""
    from edgeinfer.errors import ModelError
    from edgeinfer.hub.header import read_header

    if model.architecture and model.quant:
        return model
    try:
        header = read_header(model.path)
    except (ModelError, OSError):
        return replace(model, architecture=model.architecture or "?", quant=model.quant or "?")
    return replace(model, architecture=header.architecture or "?", quant=model.quant or header.quant)


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
