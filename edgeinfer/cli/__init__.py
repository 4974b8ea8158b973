"""The command line: one file a command, imported when it is chosen.

Errors end here: one line on stderr and the exit code of their class (edgeinfer/errors.py), a traceback only with
``--debug``.
"""

from __future__ import annotations

import difflib
import errno
import sys
import traceback
from importlib import import_module

import click

from edgeinfer import __version__
from edgeinfer.cli.terminal import note, open_missing_streams, silence_stdout
from edgeinfer.errors import DiskLimit, EdgeInferError, MemoryLimit
from edgeinfer.sanitize import sanitize

COMMANDS = {
    "run": "Answer a prompt.",
    "chat": "Chat in the terminal.",
    "batch": "Answer a file of prompts; stop and go on at any moment.",
    "replay": "Make an answer again from its receipt, and compare.",
    "tokenize": "Turn text from stdin into token ids.",
    "pull": "Fetch a model and check it.",
    "list": "Models on this machine, other programs' included.",
    "show": "What a model file says of itself.",
    "verify": "Read every byte of a model: hash, numbers, tensors.",
    "check": "Both engines on one file: how far they agree.",
    "convert": "Write a model as GGUF, quantized or not.",
    "rm": "Delete a pulled model.",
    "du": "Disk space that models take.",
    "plan": "What a model takes on this machine, by KV format, before loading.",
    "eval": "Perplexity, divergence, needles, and the price of KV formats.",
    "bench": "Measure this engine and others in turn, as ratios.",
    "advise": "What limits a model here at one depth, and what would help.",
    "doctor": "What this machine can do, and which path each operation takes.",
}


class Commands(click.Group):
    """The commands by name; none is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"edgeinfer.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            silence_stdout()  # whoever read our output has gone
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgeinfer")
@click.option("--debug", is_flag=True, help="Show tracebacks and the engine's log.")
def edgeinfer(debug: bool) -> None:
    """Run language models on this machine.

    edgeinfer run "Explain unified memory in one sentence."
    """
    if debug:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")


def main() -> None:
    """Entry point of the ``edgeinfer`` script; ends the process with the exit code of DESIGN §9."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in options
    if debug:  # it may stand anywhere, like an afterthought
        arguments = ["--debug", *(word for word in options if word != "--debug"), *arguments[len(options) :]]
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a C locale shows what it can
    try:
        code = edgeinfer.main(args=arguments, prog_name="edgeinfer", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        note(error.format_message())
        return error.exit_code
    except Exception as error:  # the one guard: a fault of ours is reported as one, never as a wall of text
        if debug:
            note(traceback.format_exc())
        return _report(error)


def _report(error: Exception) -> int:
    """One line on stderr. Returns the exit code."""
    match error:
        case EdgeInferError():
            _complain(str(error))
            return error.exit_code
        case click.UsageError(ctx=click.Context() as context):
            _complain(f"{error.format_message().rstrip('.')}; see `{context.command_path} --help`")
            return error.exit_code
        case click.ClickException():
            _complain(error.format_message())
            return 2
        case MemoryError() | OSError(errno=errno.ENOMEM):
            _complain("the memory of this process is full; take a smaller model or context, or raise the limit")
            return MemoryLimit.exit_code
        case OSError():  # what is wrong with a file of ours was told before: this is a stream, or a full disk
            silence_stdout()
            _complain(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}")
            return DiskLimit.exit_code if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
        case _:
            _complain(f"internal error: {type(error).__name__}: {error}; run `edgeinfer --debug …` for the traceback")
            return 1


def _complain(message: str) -> None:
    note(f"error: {sanitize(message, single_line=True)}")
