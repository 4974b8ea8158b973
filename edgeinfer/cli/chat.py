"""``edgeinfer chat``: the terminal app. It opens at once; the model loads while one types."""

from __future__ import annotations

import gc

import click


@click.command()
@click.argument("model", default="", metavar="[MODEL]")
@click.option("--backend", type=click.Choice(["auto", "mlx", "llama.cpp"]), help="Default: auto.")
@click.option("--context", type=click.IntRange(0), help="Tokens that a conversation may hold.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads. Default: the physical cores.")
@click.option("--inline", is_flag=True, help="Below the shell's prompt in place of the whole screen.")
def command(model: str, backend: str | None, context: int | None, threads: int | None, inline: bool) -> None:
    """Chat with MODEL in the terminal. Every conversation is kept on this machine; F1 shows the keys."""
    gc.disable()  # until the prompt is there: collecting takes a tenth of the start
    from edgeinfer.app.app import ChatApp, Options
    from edgeinfer.app.conversations import Conversations
    from edgeinfer.app.engine import Wanted
    from edgeinfer.settings import settings_or_defaults

    settings = settings_or_defaults()  # the model's loading says what is wrong with the file
    wanted = Wanted(model or settings.model, backend or "", context, threads)
    with Conversations.open(settings.paths.chats) as store:
        ChatApp(store, Options(wanted, folder=settings.paths.config_file.parent)).run(inline=inline)
