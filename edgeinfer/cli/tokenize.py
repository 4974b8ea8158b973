"""``edgeinfer tokenize``: text in, token ids out."""

from __future__ import annotations

import json
import sys

import click

from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.terminal import read_text
from edgeinfer.sanitize import sanitize


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of ids in place of a table.")
@click.option("--special", is_flag=True, help="Let the texts of control tokens become control tokens.")
@click.option("--bos", is_flag=True, help="Begin with the model's beginning-of-text token, where it has one.")
def command(model: str, as_json: bool, special: bool, bos: bool) -> None:
    """Turn text from stdin into MODEL's token ids.

    printf 'Hello' | edgeinfer tokenize smollm2-135m --json
    """
    from edgeinfer.llm import load_tokenizer

    with download_progress() as on_progress:
        tokenizer = load_tokenizer(model, on_progress=on_progress)
    ids = tokenizer.encode(read_text(sys.stdin), special=special, add_bos=bos)
    if as_json:
        click.echo(json.dumps(ids))
        return
    for token in ids:
        click.echo(f"{token:7}  {sanitize(tokenizer.token_text(token), single_line=True)}")
