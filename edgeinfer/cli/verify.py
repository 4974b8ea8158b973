"""``edgeinfer verify``: read every byte of a model, and say whether it is whole."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.progress import counting
from edgeinfer.cli.tables import facts, width
from edgeinfer.errors import CorruptFile, ModelError, ModelNotFound
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.conversion.verifying import Report


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(name: str, as_json: bool) -> None:
    """Read every byte of MODEL: hash, numbers and tensors.

    Compares the SHA-256 with the one it was pulled with, decodes every block and looks for infinite scales and for
    what is no number, and checks the tensors that the architecture needs. Exits with 2 if something is wrong.
    """
    from edgeinfer import library
    from edgeinfer.conversion.verifying import verify
    from edgeinfer.converted.opening import open_model

    model = library.find(name)
    if model is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with: edgeinfer pull {name}")
    with open_model(model.path) as file, counting("verify", "B") as on_progress:
        report = verify(file, model.sha256, on_progress)
    if as_json:
        row = asdict(report) | {"whole": report.whole}
        row["files"] = [asdict(each) | {"path": str(each.path), "wrong": each.wrong} for each in report.files]
        click.echo(json.dumps(row))
    else:
        click.echo(facts(_rows(report), width(sys.stdout)))
    if report.misfit:
        raise ModelError(report.obstacle, model.path)
    if not report.whole:
        first = next((file for file in report.files if file.wrong), None)
        problem = "another SHA-256 than it was pulled with; pull it again" if first else _bad(report)
        raise CorruptFile(first.path if first else model.path, "file" if first else report.bad[0].name, None, problem)


def _rows(report: Report) -> list[tuple[str, str]]:
    rows = []
    for file in report.files:
        verdict = "not as pulled" if file.wrong else "as pulled" if file.expected else "no hash to compare with"
        rows.append(("file", f"{sanitize(file.path.name, single_line=True)}: sha256 {file.sha256}, {verdict}"))
    rows.append(("blocks", f"{report.blocks:,} in {report.tensors} tensors, {_bad(report) or 'all of them numbers'}"))
    if report.undecodable:
        rows.append(("not read", f"{len(report.undecodable)} tensors in formats without a decoder here"))
    rows.append(("tensors", report.obstacle or "all that the architecture needs, of the right shapes"))
    return rows


def _bad(report: Report) -> str:
    if not report.bad:
        return ""
    worst = report.bad[0]
    count = sum(each.blocks for each in report.bad)
    return f"{count} blocks of {len(report.bad)} tensors hold no numbers, first {worst.name} block {worst.first}"
