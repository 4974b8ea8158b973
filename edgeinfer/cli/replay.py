"""``edgeinfer replay``: makes an answer again from its receipt and says whether it is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.terminal import note
from edgeinfer.errors import BadInput
from edgeinfer.sanitize import sanitize

DIFFERENT = 1  # exit code


@click.command()
@click.argument("receipt", type=click.Path(path_type=Path))
@click.option("-m", "--model", default="", help="Where the model is now, if not where the receipt says.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout in place of text.")
def command(receipt: Path, model: str, as_json: bool) -> int:
    """Make the answer of RECEIPT again and compare it token by token; exit code 1 where one differs.

    `edgeinfer run --receipt FILE` writes a receipt: hashes of the weights, the template and the prompt, and the
    request with its seed.
    """
    import edgeinfer
    from edgeinfer.generation import receipts

    try:
        text = receipt.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{receipt}: cannot be read ({error})") from None
    wanted = receipts.parse(text, receipt.name)
    with download_progress() as on_progress:
        options: dict[str, Any] = {name: wanted.load.get(name) for name in ("backend", "context", "threads")}
        with edgeinfer.load(model or wanted.model, on_progress=on_progress, **options) as llm:
            result = llm.replay(wanted)
            expected, found = (
                None if token is None else llm.detokenize([token]) for token in (result.expected, result.found)
            )
    if as_json:
        shown = {"identical": result.identical, "place": result.difference, "expected": expected, "found": found}
        click.echo(json.dumps({**shown, "changes": result.changes}))
    elif result.identical:
        click.echo(f"identical: all {len(wanted.ids)} tokens")
    else:
        ends = "the end of the answer"
        there, here = (ends if text is None else repr(sanitize(text)) for text in (expected, found))
        click.echo(f"token {result.difference} differs: {here}, the receipt has {there}")
    for line in result.changes:
        note(f"note: {sanitize(line)}")
    return 0 if result.identical else DIFFERENT
