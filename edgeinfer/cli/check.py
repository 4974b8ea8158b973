"""``edgeinfer check``: both engines on one file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from edgeinfer.cli.progress import counting
from edgeinfer.cli.tables import facts, width
from edgeinfer.cli.texts import read_text
from edgeinfer.errors import EdgeInferError, ModelNotFound


class EnginesDisagree(EdgeInferError):
    """The two engines do not compute the same model."""


@click.command()
@click.argument("name", metavar="MODEL")
@click.argument("text", required=False)
@click.option("--window", type=click.IntRange(2), default=256, help="Tokens of a window. Default: 256.")
@click.option("--windows", type=click.IntRange(0), default=2, help="Windows at most; 0: all of the text. Default: 2.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(name: str, text: str | None, window: int, windows: int, threads: int, as_json: bool) -> None:
    """Run MODEL on the MLX engine and on llama.cpp, and say how far they agree.

    TEXT is a file, or - for stdin; without one, our own. Both see the same tokens at every place. Exits with 1 where
    fewer than 95 % of the best tokens are equal.
    """
    from edgeinfer import library
    from edgeinfer.conversion.checking import AGREES, agreement
    from edgeinfer.evaluation import texts
    from edgeinfer.evaluation.model import EvaluatedModel

    model = library.find(name)
    if model is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with: edgeinfer pull {name}")
    evaluated = EvaluatedModel.of(Path(model.path))
    cut = texts.windows(read_text(text), evaluated.tokenizer, window, windows)
    with counting("check") as on_progress:
        found = agreement(evaluated, cut, threads, on_progress)
    result, first = found.divergence, found.first
    if as_json:
        click.echo(json.dumps({**asdict(result), "windows": found.windows, "agrees": found.agrees,
                               "first_divergence": asdict(first) if first else None}))  # fmt: skip
    else:
        apart = "nowhere: the best tokens are equal at every place"
        if first:
            ours, theirs = (evaluated.tokenizer.token_text(token) for token in (first.mlx, first.llama_cpp))
            place = f"window {first.window}, token {first.place}"
            apart = f"{place}: MLX {ours!r}, llama.cpp {theirs!r}, {first.gap:.3f} nats apart"
        rows = [
            ("same best token", f"{100 * result.top:.2f} % of {result.tokens}"),
            ("mean KL", f"{result.mean:.6f} nats ± {result.error:.6f}, 99.9 %: {result.p999:.4f}"),
            ("first apart", apart),
        ]
        click.echo(facts(rows, width()))
    if not found.agrees:
        raise EnginesDisagree(
            f"{name}: equal best tokens at {100 * result.top:.1f} % of the places, expected {100 * AGREES:.0f} % "
            "or more: one engine computes another model; report the file, and use --backend llama.cpp meanwhile"
        )
