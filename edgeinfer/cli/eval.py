"""``edgeinfer eval``: how good a model's answers still are, as perplexity, divergence, needles, and by KV format."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.progress import counting, download_progress
from edgeinfer.cli.tables import table, width
from edgeinfer.cli.texts import read_text
from edgeinfer.errors import BadRequest
from edgeinfer.sanitize import sanitize

if TYPE_CHECKING:
    from edgeinfer.evaluation.formats import FormatCost
    from edgeinfer.evaluation.model import EvaluatedModel
    from edgeinfer.evaluation.scores import Divergence


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure how good MODEL still is: as perplexity, as divergence, by needles, and by KV format.

    TEXT is a file, or - for stdin. Without one, 4 × 512 tokens of English, Python and Markdown are used.
    """


def _common(function: Any) -> Any:
    for option in reversed(
        (
            click.option("--window", type=click.IntRange(2), default=512, help="Tokens of a window. Default: 512."),
            click.option("--windows", type=click.IntRange(0), default=0, help="Windows at most; 0: all of the text."),
            click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores."),
            click.option("--json", "as_json", is_flag=True, help="JSON in place of a table."),
        )
    ):
        function = option(function)
    return function


_kv = click.option("--kv", default="exact", metavar="FORMAT", help="Of keys and values, as in `run`. Default: exact.")
_backend = click.option("--backend", type=click.Choice(["auto", "mlx", "llama.cpp"]), default="auto", help="Of MODEL.")


@command.command(short_help="Perplexity, as llama-perplexity defines it.")
@click.argument("model")
@click.argument("text", required=False)
@_backend
@_kv
@_common
def ppl(
    model: str, text: str | None, backend: str, kv: str, window: int, windows: int, threads: int, as_json: bool
) -> None:
    """Perplexity, as llama-perplexity defines it.

    The text is cut in windows; tokens of each window's second half count, predicted by all that stands before them in
    it. The first token of a window is the model's own first token where it wants one.
    """
    from edgeinfer.evaluation import texts
    from edgeinfer.evaluation.lockstep import Side
    from edgeinfer.evaluation.measures import perplexity

    evaluated = _resolve(model)
    cut = texts.windows(read_text(text), evaluated.tokenizer, window, windows)
    loaded = evaluated.load(backend, window, threads, kv)
    with counting("perplexity") as on_progress:
        found = perplexity(Side(model, loaded), cut, on_progress)
    loaded.close()
    if as_json:
        click.echo(json.dumps(asdict(found) | {"window": window, "windows": len(cut)}))
        return
    click.echo(
        f"perplexity {found.ppl:.4f} ± {found.error:.4f}, {found.tokens} tokens in {len(cut)} windows of {window}"
    )


@command.command(short_help="Divergence from another file, backend or KV format.")
@click.argument("model")
@click.argument("text", required=False)
@click.option("--against", metavar="MODEL", help="The reference: another file of the same vocabulary.")
@click.option("--kv-a", metavar="FORMAT", help="Round the reference's keys and values to this.")
@click.option("--kv-b", metavar="FORMAT", help="Round MODEL's keys and values to this.")
@_backend
@click.option("--against-backend", type=click.Choice(["mlx", "llama.cpp"]), help="Of the reference.")
@_common
def kld(
    model: str,
    text: str | None,
    against: str | None,
    kv_a: str | None,
    kv_b: str | None,
    backend: str,
    against_backend: str | None,
    window: int,
    windows: int,
    threads: int,
    as_json: bool,
) -> None:
    """How far MODEL's distributions are from a reference's: KL(reference || MODEL), in nats a token.

    The reference is another file (--against), another backend (--against-backend) or another format of keys and values
    (--kv-a, exact by default, with --kv-b). Tokens of each window's second half count.
    """
    from edgeinfer.evaluation import texts
    from edgeinfer.evaluation.divergence import Reference, divergence_from

    reference = Reference(
        path=_resolve(against).path if against else None, backend=against_backend or "", kv=(kv_a or "", kv_b or "")
    )
    evaluated = _resolve(model)
    cut = texts.windows(read_text(text), evaluated.tokenizer, window, windows)
    with counting("divergence") as on_progress:
        found = divergence_from(reference, evaluated, cut, backend, threads, on_progress)
    if as_json:
        click.echo(json.dumps(_divergence_row(found)))
        return
    facts = [
        ("mean KL", f"{found.mean:.6f} ± {found.error:.6f}"),
        ("median", f"{found.median:.6f}"),
        ("99.9 %", f"{found.p999:.6f}"),
        ("same best token", f"{100 * found.top:.2f} %"),
        ("perplexity", f"{found.ppl:.4f}, {found.ppl_ratio:.4f} × the reference's {found.reference_ppl:.4f}"),
        ("tokens", str(found.tokens)),
    ]
    click.echo(table(("", "nats"), facts, width()).partition("\n")[2])


@command.command(short_help="Sentences found, by depth and length of the text.")
@click.argument("model")
@click.option("--lengths", default="512,1024,2048", help="Tokens, with commas. Default: 512,1024,2048.")
@click.option("--depths", type=click.IntRange(1, 101), default=5, help="Places from the first to the last. Default: 5.")
@click.option("--needles", type=click.IntRange(1), default=1, help="Sentences to find in each text. Default: 1.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Order of the text, and numbers. Default: 0.")
@_backend
@_kv
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--png", type=click.Path(dir_okay=False, writable=True), help="Draw the map into this file as well.")
@click.option("--json", "as_json", is_flag=True, help="JSON in place of a map.")
def needle(
    model: str,
    lengths: str,
    depths: int,
    needles: int,
    seed: int,
    backend: str,
    kv: str,
    threads: int,
    png: str | None,
    as_json: bool,
) -> None:
    """Whether MODEL finds a sentence that stands far back, by length of the text and depth of the place.

    A sentence with a number is hidden among others; it is found when the model, given its beginning again, continues
    with the number.
    """
    from edgeinfer.cli.heatmap import check_plots, heatmap, write_png
    from edgeinfer.evaluation.needle import find_needles

    if png:
        check_plots()
    wanted = _lengths(lengths)
    places = [0.5] if depths == 1 else [index / (depths - 1) for index in range(depths)]
    evaluated = _resolve(model)
    loaded = evaluated.load(backend, max(wanted), threads, kv)
    with counting("needles") as on_progress:
        cells = find_needles(loaded, evaluated.tokenizer, wanted, places, needles, seed, on_progress)
    loaded.close()
    if png:
        write_png(cells, Path(png), _title(model, needles))
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in cells]))
        return
    click.echo(f"{_title(model, needles)}\n\n{heatmap(cells)}")


def _title(model: str, needles: int) -> str:
    what = "a needle" if needles == 1 else f"{needles} needles"
    return f"{sanitize(model, single_line=True)}: {what} found, in per cent, by depth and tokens"


@command.command(short_help="What each format of keys and values costs.")
@click.argument("model")
@click.argument("text", required=False)
@click.option("--formats", help="Names, with commas. Default: ours, and of the others those that are in use.")
@click.option("--regions", is_flag=True, help="Keep exact what a running cache keeps so; give it a longer --window.")
@click.option("--depths", metavar="N,N", help="Measure decoding behind so many tokens as well, with our own formats.")
@_common
def kv(
    model: str,
    text: str | None,
    formats: str | None,
    regions: bool,
    depths: str | None,
    window: int,
    windows: int,
    threads: int,
    as_json: bool,
) -> None:
    """What each format of keys and values costs on a text: bytes a token, and how far the model moves from float16.

    Every key and value is rounded, from the first token on and in every layer. A running cache keeps the first and the
    latest tokens exact, and layers that see a window; --regions does so too. What is found without it is remembered as
    the price of a format, for `plan` and the chat app.
    """
    from edgeinfer.cli.evaltable import formats_table
    from edgeinfer.evaluation import texts
    from edgeinfer.evaluation.formats import CHOSEN, checked_formats, compare_formats
    from edgeinfer.loading import prices
    from edgeinfer.settings import load_settings

    wanted = checked_formats(formats.split(",") if formats else CHOSEN)
    places = _lengths(depths, "depths") if depths else []
    evaluated = _resolve(model)
    cut = texts.windows(read_text(text), evaluated.tokenizer, window, windows)
    with counting("formats") as on_progress:
        rows = compare_formats(evaluated.path, wanted, cut, regions, threads, on_progress)
    if not regions:
        found = {row.format: row.divergence.mean for row in rows}
        prices.keep(load_settings().paths.measured, evaluated.path, found, rows[0].divergence.tokens)
    if places:
        rows = _with_decoding(evaluated.path, rows, places, threads)
    click.echo(json.dumps([row.to_json() for row in rows]) if as_json else formats_table(rows))


def _with_decoding(path: Path, rows: list[FormatCost], depths: list[int], threads: int) -> list[FormatCost]:
    from edgeinfer.bench.formats import decode_by_depth
    from edgeinfer.cache.formats import FORMATS

    names = [row.format for row in rows if FORMATS[row.format].exact or any(FORMATS[row.format].widths)]
    with counting("decoding") as on_progress:
        found = decode_by_depth(path, names, depths, threads, on_progress=on_progress)
    return [
        replace(
            row,
            decode={depth: one.rate for depth, one in found.get(row.format, {}).items()},
            held={depth: one.held for depth, one in found.get(row.format, {}).items()},
        )
        for row in rows
    ]


def _resolve(model: str) -> EvaluatedModel:
    from edgeinfer.evaluation.model import EvaluatedModel
    from edgeinfer.hub.sources import resolve
    from edgeinfer.settings import load_settings

    with download_progress() as on_progress:
        return EvaluatedModel.of(resolve(model, load_settings(), on_progress=on_progress).path)


def _lengths(text: str, name: str = "lengths") -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 8 for word in words):
        raise BadRequest(f"{name}={text!r:.60}: expected whole numbers with commas between, like 512,2048", name)
    return [int(word) for word in words]


def _divergence_row(found: Divergence) -> dict[str, Any]:
    return {
        "kl": found.mean,
        "kl_error": found.error,
        "kl_median": found.median,
        "kl_p999": found.p999,
        "top": found.top,
        "flips": found.flips,
        "ppl_ratio": found.ppl_ratio,
        "ppl": found.ppl,
        "reference_ppl": found.reference_ppl,
        "tokens": found.tokens,
    }
