"""``edgeinfer rm``: delete a pulled model."""

from __future__ import annotations

import json

import click

from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the name and the bytes freed.")
def command(name: str, as_json: bool) -> None:
    """Delete MODEL, or what an unfinished pull of it left. Files of other programs are never touched."""
    from edgeinfer.library import delete, empty_trash

    removed = delete(name)
    empty_trash()
    result = f"removed {sanitize(removed.name, single_line=True)}, {human_bytes(removed.freed)} freed"
    click.echo(json.dumps({"name": removed.name, "freed": removed.freed}) if as_json else result)
