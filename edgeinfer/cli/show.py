"""``edgeinfer show``: what a model file says of itself, from its header alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.tables import facts, width
from edgeinfer.errors import EdgeInferError, ModelNotFound
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.formats.gguf import GGUFFile
    from edgeinfer.hub.header import Header
    from edgeinfer.hub.sources import LocalModel

_TEMPLATE_LINES = 6
_LINE = 76


@click.command()
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the whole chat template.")
def command(name: str, as_json: bool) -> None:
    """Show what MODEL is: a name on this machine, a path, or a source that was pulled. No weights are read."""
    from edgeinfer.converted.opening import open_model
    from edgeinfer.hub.header import describe
    from edgeinfer.hub.sources import find
    from edgeinfer.settings import load_settings

    model = find(name, load_settings())
    if model is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with: edgeinfer pull {name}")
    with open_model(model.path) as file:
        header = describe(file)
        backend, why = _backend(file)
    if as_json:
        click.echo(json.dumps(_row(model, header, backend, why), indent=1))
        return
    click.echo(facts(_facts(model, header, backend, why), width()))
    for line in _template(header.template):
        click.echo(f"  {sanitize(line, single_line=True)}")


def _backend(file: GGUFFile) -> tuple[str, str]:
    """The backend that will run the file and why it and not the other; an empty name when none can."""
    from edgeinfer.backends import choose

    try:
        choice = choose(file)
    except EdgeInferError as error:
        return "", str(error)
    other = "llama.cpp" if choice.name == "mlx" else "mlx"
    if other in choice.why:
        return choice.name, choice.why
    try:
        choose(file, other)
    except EdgeInferError as error:
        return choice.name, f"{choice.why}; {other} not: {error}"
    return choice.name, f"{choice.why}; {other} could too (--backend {other})"


def _facts(model: LocalModel, header: Header, backend: str, why: str) -> list[tuple[str, str]]:
    heads = f"{header.heads} heads, {header.kv_heads or header.heads} of keys and values"
    rows = [
        ("name", model.name),
        ("title", header.title),
        ("architecture", f"{header.architecture}, {header.layers} layers of {header.embedding}, {heads}"),
        ("parameters", f"{header.parameters / 1e6:,.1f} million"),
        ("quant", f"{model.quant or header.quant}: {_mix(header)}"),
        ("context", f"{header.context:,} tokens" if header.context else ""),
        ("rope", ", ".join(f"{key} {value}" for key, value in header.rope.items())),
        ("vocabulary", f"{header.vocab_size:,} tokens, {header.tokenizer}"),
        ("special", ", ".join(f"{role} {number} {text!r}" for role, (number, text) in header.special.items())),
        ("licence", model.license or header.license or "not stated"),
        ("size", f"{human_bytes(model.size)} in {len(model.files)} {'file' if len(model.files) == 1 else 'files'}"),
        ("origin", f"{model.origin} {model.source}".rstrip()),
        ("sha256", ", ".join(model.sha256)),
        ("path", str(model.path)),
        ("backend", f"{backend}: {why}" if backend else f"none: {why}"),
        ("template", f"{len(header.template):,} characters" if header.template else "none"),
    ]
    return [(label, text) for label, text in rows if text]


def _mix(header: Header) -> str:
    return ", ".join(f"{share.codec} {human_bytes(share.bytes)} in {share.tensors}" for share in header.mix)


def _template(template: str) -> list[str]:
    lines = [line if len(line) <= _LINE else line[: _LINE - 1] + "…" for line in template.splitlines()]
    return lines if len(lines) <= _TEMPLATE_LINES else [*lines[:_TEMPLATE_LINES], "…"]


def _row(model: LocalModel, header: Header, backend: str, why: str) -> dict[str, object]:
    row = asdict(header)
    return row | {
        "name": model.name,
        "quant": model.quant or header.quant,
        "license": model.license or header.license,
        "size": model.size,
        "origin": model.origin,
        "source": model.source,
        "sha256": list(model.sha256),
        "path": str(model.path),
        "files": [str(file) for file in model.files],
        "backend": backend or None,
        "backend_reason": why,
    }
