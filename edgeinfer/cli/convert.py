"""``edgeinfer convert``: a model in another form."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.progress import counting
from edgeinfer.cli.tables import facts, width
from edgeinfer.cli.terminal import note
from edgeinfer.cli.texts import read_text
from edgeinfer.errors import BadRequest, ModelNotFound
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.conversion.importance import Importance
    from edgeinfer.conversion.writing import Outcome
    from edgeinfer.evaluation.model import EvaluatedModel
    from edgeinfer.evaluation.scores import Divergence
    from edgeinfer.library import LocalModel

_WINDOW = 256


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to", "form", default="F16", help="F16 (the default), BF16, F32, keep, mlx, or a quantization: Q4_K_M …"
)
@click.option("--text", help="A text for the importance matrix, - for stdin: what the model is used for.")
@click.option("--kl/--no-kl", default=True, help="Compare the result with SRC. Default: --kl.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: physical cores.")
@click.option("--force", is_flag=True, help="Replace DST where it exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(
    source: str, target: Path, form: str, text: str | None, kl: bool, threads: int, force: bool, as_json: bool
) -> None:
    """Write SRC, a folder of safetensors or a GGUF file, as the GGUF file DST, or with --to mlx as an MLX folder.

    "keep" and "mlx" leave codes as they are that the other format has, and say what they had to decode. Quantizing is
    llama.cpp's; --text gives it an importance matrix from a text, which the smallest forms need. The size and the
    distance from SRC are printed.
    """
    from edgeinfer.evaluation.model import EvaluatedModel

    form = form.lower() if form.lower() in ("keep", "mlx") else form.upper()
    model = _checked(source, target, form, text, force)
    words = read_text(text) if text is not None else None
    evaluated = EvaluatedModel.of(model.path)
    weights, outcome = _write(model.path, target, form, words, evaluated, threads or os.cpu_count() or 1)
    found = _distance(evaluated, target, threads) if kl else None
    size = sum(each.stat().st_size for each in target.glob("*")) if target.is_dir() else target.stat().st_size
    row = {
        "path": str(target), "size": size, "form": form, "source_size": model.size,
        "kl": found.mean if found else None, "kl_error": found.error if found else None,
        "same_best_token": found.top if found else None, "codes": asdict(outcome) if outcome else None,
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(row))
        return
    rows = [("folder" if target.is_dir() else "file", str(target))]
    rows.append(("size", f"{human_bytes(size)}, {8 * size / weights:.2f} bits a weight"))
    if outcome:
        rows.append(("codes", str(outcome)))
    if found:
        same = f"{100 * found.top:.2f} % same best token"
        rows.append(("mean KL", f"{found.mean:.6f} nats ± {found.error:.6f} from SRC, {same}"))
    click.echo(facts(rows, width()))


def _checked(source: str, target: Path, form: str, text: str | None, force: bool) -> LocalModel:
    """SRC, where nothing is in the way of converting it."""
    from edgeinfer import library
    from edgeinfer.conversion.quantizing import FILE_TYPES, NEED_IMPORTANCE
    from edgeinfer.conversion.writing import FLOATS, check_installed

    if form not in (*FLOATS, *FILE_TYPES, "keep", "mlx"):
        known = ", ".join((*FLOATS, "keep", "mlx", *FILE_TYPES))
        raise BadRequest(f"--to {form!r:.20}: expected {known}", "to")
    if form in NEED_IMPORTANCE and text is None:
        raise BadRequest(f"{form} needs to know which weights matter: give a text with --text FILE", "text")
    model = library.find(source)
    if model is None:
        raise ModelNotFound(f"{source} is not on this machine; fetch it with: edgeinfer pull {source}")
    if not os.access(target.absolute().parent, os.W_OK | os.X_OK) or not target.absolute().parent.is_dir():
        raise BadRequest(f"{target}: {target.absolute().parent} is no folder that can be written", "target")
    if target.exists() and form != "mlx" and (target.is_dir() or not force):
        raise BadRequest(f"{target} exists; give another name{' or --force' * target.is_file()}", "target")
    if target.resolve() in {file.resolve() for file in model.files}:
        raise BadRequest(f"{target} is SRC itself; give another name", "target")
    if form != "mlx":
        check_installed()
    return model


def _write(
    path: Path, target: Path, form: str, words: str | None, evaluated: EvaluatedModel, cores: int
) -> tuple[int, Outcome | None]:
    """How many weights there are, and what became of their codes where they were to be kept."""
    from edgeinfer.conversion.folders import write_mlx
    from edgeinfer.conversion.quantizing import FILE_TYPES, quantize
    from edgeinfer.conversion.writing import write_gguf
    from edgeinfer.converted.opening import open_model

    with TemporaryDirectory(prefix=".edgeinfer-", dir=target.parent) as folder, open_model(path) as file:
        weights = file.parameters
        if form not in FILE_TYPES:
            with counting("write", "B") as on_progress:
                if form == "mlx":
                    return weights, write_mlx(file, target, on_progress)
                outcome = write_gguf(file, target, form, on_progress)
            return weights, outcome if form == "keep" else None
        whole = path
        if path.is_dir():
            whole = Path(folder) / "whole.gguf"
            with counting("write", "B") as on_progress:
                write_gguf(file, whole, "F16", on_progress)
        importance = _importance(whole, words, evaluated, cores)
        with counting("quantize", "tensors") as on_progress:
            quantize(whole, target, form, importance, cores, on_progress)
        return weights, None


def _importance(path: Path, text: str | None, evaluated: EvaluatedModel, threads: int) -> Importance | None:
    from edgeinfer.conversion.importance import importance
    from edgeinfer.evaluation import texts

    if text is None:
        return None
    windows = texts.windows(text, evaluated.tokenizer, _WINDOW)
    note(f"importance of columns over {len(windows)} windows of {_WINDOW} tokens")
    with counting("importance", "windows") as on_progress:
        return importance(path, windows, threads, on_progress)


def _distance(source: EvaluatedModel, target: Path, threads: int) -> Divergence:
    """KL(SRC || DST) over our own texts, each on the engine that `run` would choose."""
    from edgeinfer.evaluation import texts
    from edgeinfer.evaluation.divergence import Reference, divergence_from
    from edgeinfer.evaluation.model import EvaluatedModel

    windows = texts.windows(None, source.tokenizer, _WINDOW, 2)
    reference = Reference(path=source.path)
    made = EvaluatedModel(target, source.tokenizer)
    with counting("compare") as on_progress:
        return divergence_from(reference, made, windows, "auto", threads, on_progress)
