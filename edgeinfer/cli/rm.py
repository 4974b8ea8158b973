"""``edgeinfer rm``: delete a pulled model."""

from __future__ import annotations

import json

import click

from edgeinfer.errors import BadInput, ModelNotFound
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the name and the bytes freed.")
def command(name: str, as_json: bool) -> None:
    """Delete MODEL, or what an unfinished pull of it left. Files of other programs are never touched."""
    from edgeinfer.hub.sources import find
    from edgeinfer.hub.store import Store
    from edgeinfer.settings import load_settings

    settings = load_settings()
    store = Store(settings.models_folder)
    freed = store.remove(name)
    if freed is None:
        model = find(name, settings)
        if model is None:
            raise ModelNotFound(f"{name} is not on this machine")
        if not model.managed:
            raise BadInput(f"{name} was not pulled by edgeinfer; delete it where it is: {model.path}")
        name = model.name
        freed = store.remove(name) or 0
    result = f"removed {sanitize(name, single_line=True)}, {human_bytes(freed)} freed"
    click.echo(json.dumps({"name": name, "freed": freed}) if as_json else result)
