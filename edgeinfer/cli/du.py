"""``edgeinfer du``: disk space that models take."""

from __future__ import annotations

import json

import click

from edgeinfer.cli.tables import table, width
from edgeinfer.units import human_bytes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of a table.")
def command(as_json: bool) -> None:
    """Show the disk space of each pulled model and unfinished pull, and what is free.

    Models of other programs are counted in one row each; edgeinfer shares their files and adds nothing.
    """
    from edgeinfer.hub.local import find_models
    from edgeinfer.hub.partial import free_bytes
    from edgeinfer.hub.store import Store
    from edgeinfer.settings import load_settings, model_folders

    folder = load_settings().models_folder
    store = Store(folder)
    rows = [(model.name, model.size, "pulled") for model in store.models()]
    rows += [(name, size, "unfinished") for name, size in store.leftovers()]
    total, free = sum(size for _, size, _ in rows), free_bytes(folder)
    others: dict[str, int] = {}
    for model in find_models(model_folders()):
        others[model.origin] = others.get(model.origin, 0) + model.size
    if as_json:
        row = {
            "folder": str(folder),
            "models": [{"name": name, "size": size, "state": state} for name, size, state in rows],
            "total": total,
            "free": free,
            "others": others,
        }
        click.echo(json.dumps(row, indent=1))
        return
    lines = [(name, human_bytes(size), state) for name, size, state in rows]
    lines += [("total", human_bytes(total), str(folder)), ("free", human_bytes(free), "")]
    lines += [(origin, human_bytes(size), "not ours") for origin, size in others.items()]
    click.echo(table(("NAME", "SIZE", ""), lines, width(), frozenset({1})))
