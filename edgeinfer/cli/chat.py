"""``edgeinfer chat``: the terminal app. It opens at once; the model loads while one types."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.terminal import note
from edgeinfer.errors import BadInput, EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.conversations import Conversations
    from edgeinfer.app.engine import Wanted
    from edgeinfer.paths import Paths


@click.command()
@click.argument("model", default="", metavar="[MODEL]")
@click.option("--backend", type=click.Choice(["auto", "mlx", "llama.cpp"]), help="Default: auto.")
@click.option("--context", type=click.IntRange(0), help="Tokens that a conversation may hold.")
@click.option("--kv", default="", help="Format of keys and values: exact, k8v4, k4v4, … Default: auto.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads. Default: the physical cores.")
@click.option("--template", default="", metavar="NAME", help="Another chat template: the file's by name, chatml, raw.")
@click.option("--inline", is_flag=True, help="Below the shell's prompt in place of the whole screen.")
@click.option("--plain", is_flag=True, help="Line by line, for screen readers and simple terminals.")
@click.option("--screenshots", type=click.Path(path_type=Path), hidden=True, help="Write the README's pictures there.")
def command(
    model: str,
    backend: str | None,
    context: int | None,
    threads: int | None,
    kv: str,
    template: str,
    inline: bool,
    plain: bool,
    screenshots: Path | None,
) -> int:
    """Chat with MODEL in the terminal. Every conversation is kept on this machine; F1 shows the keys."""
    gc.disable()  # until the prompt is there: collecting takes a tenth of the start
    from edgeinfer.app.conversations import Conversations
    from edgeinfer.app.engine import Wanted
    from edgeinfer.settings import settings_or_defaults, simple_terminal

    settings = settings_or_defaults()  # the model's loading says what is wrong with the file
    wanted = Wanted(model or settings.model, backend or "", context, threads, kv, template)
    if screenshots is not None:
        return _screenshots(screenshots, wanted)
    if not plain and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("chat needs a terminal; use `edgeinfer run`, or --plain, which reads lines from anywhere")
    if not plain and simple_terminal():
        plain = True
        note("this terminal cannot draw: line by line (--plain)")
    with Conversations.open(settings.paths.chats) as store:
        if plain:
            return _plain(store, wanted)
        return _full(store, wanted, settings.paths, inline)


def _plain(store: Conversations, wanted: Wanted) -> int:
    from edgeinfer.app.plain import PlainChat

    gc.enable()
    PlainChat(store, wanted).run()
    return 0


def _full(store: Conversations, wanted: Wanted, paths: Paths, inline: bool) -> int:
    from edgeinfer.app.app import ChatApp, Options

    app = ChatApp(store, Options(wanted, folder=paths.config_file.parent))
    app.run(inline=inline)
    if app.fault is not None:
        raise _reported(app.fault, paths.chats.with_name("chat-failed.txt")) from app.fault
    return app.return_code or 0


def _reported(fault: Exception, report: Path) -> EdgeInferError:
    """A line about a fault of the app's own; all that is known of it goes to a file."""
    import traceback

    what = f"the app failed ({type(fault).__name__}: {fault}); everything that was said is kept"
    try:
        report.write_text("".join(traceback.format_exception(fault)), encoding="utf-8")
    except OSError:
        return EdgeInferError(f"{what}; `edgeinfer --debug chat` shows more")
    return EdgeInferError(f"{what}; please report it with {report}")


def _screenshots(folder: Path, wanted: Wanted) -> int:
    from edgeinfer.app.screenshots import take

    gc.enable()
    for file in take(folder, wanted):
        click.echo(str(file))
    return 0
