"""``edgeinfer run``: one prompt, one answer. stdout holds the answer alone, everything else goes to stderr."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import click

from edgeinfer.cli.asking import read_chat_options, read_prompt, read_structure
from edgeinfer.cli.options import model_options, sampling_options
from edgeinfer.cli.progress import download_progress
from edgeinfer.cli.tables import facts, width
from edgeinfer.cli.terminal import note
from edgeinfer.errors import BadRequest
from edgeinfer.sanitize import sanitize
from edgeinfer.types import (
    AUTO,
    DRAFTERS,
    OFF,
    Event,
    Finished,
    ReasoningDelta,
    Reply,
    ReplyBuilder,
    SamplingParams,
    TextDelta,
    ToolCallDelta,
)
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.generation.engine import Stream
    from edgeinfer.llm import LLM


@click.command()
@click.argument("prompt", required=False)
@click.option("-s", "--system", default="", help="A system message before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without a chat template.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout in place of text.")
@click.option("--stats", is_flag=True, help="A few lines of figures on stderr in place of one.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but warnings and errors.")
@click.option(
    "--template",
    default="",
    metavar="NAME",
    hidden=True,
    help="Another chat template: the file's by name, chatml, raw.",
)
@click.option(
    "--overflow",
    type=click.Choice(["refuse", "drop-oldest"]),
    default="refuse",
    help="When the prompt does not fit the context. Default: refuse.",
)
@click.option("--schema", default="", metavar="JSON|FILE", help="A JSON schema that the answer keeps to.")
@click.option("--regex", default="", help="A regular expression that the answer keeps to.")
@click.option("--tools", default="", metavar="JSON|FILE", help="Tools that the model may call, as OpenAI lists them.")
@click.option(
    "--tool-choice", default="", metavar="WORD|NAME", hidden=True, help="auto, none, required, or one by name."
)
@click.option(
    "--reasoning",
    default="auto",
    metavar="auto|off|N",
    help="Thinking before the answer: as the model has it, none, or at most N tokens. Default: auto.",
)
@click.option(
    "--receipt",
    type=click.Path(path_type=Path),
    hidden=True,
    help="Write what the answer was made of, for `edgeinfer replay`.",
)
@click.option(
    "--speculation",
    type=click.Choice([AUTO, OFF, *DRAFTERS]),
    metavar="auto|off|NAME",
    default=AUTO,
    help="Draft tokens where that is faster; the text is the same. Default: auto.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    hidden=True,
    help="The same tokens each time, whatever the backend; slower on some.",
)
@click.option("--distributed", is_flag=True, hidden=True, help="One model over the processes that mlx.launch started.")
@click.option(
    "--draft-model", default="", metavar="MODEL", hidden=True, help="A second, smaller model that drafts for MODEL."
)
@model_options
@sampling_options
def command(
    prompt: str | None,
    system: str,
    raw: bool,
    as_json: bool,
    stats: bool,
    quiet: bool,
    template: str,
    overflow: str,
    schema: str,
    regex: str,
    tools: str,
    tool_choice: str,
    reasoning: str,
    receipt: Path | None,
    speculation: str,
    deterministic: bool,
    distributed: bool,
    draft_model: str,
    model: str,
    backend: str | None,
    kv: str,
    context: int,
    threads: int,
    params: SamplingParams,
) -> None:
    """Answer PROMPT; `-` reads it from stdin, text piped in beside a prompt is appended to it.

    The answer goes to stdout, a summary to stderr. --help-all shows every option.
    """
    asked = read_prompt(prompt, system, raw, piped=not distributed)
    options: dict[str, Any] = {
        "params": params,
        "overflow": overflow,
        "speculation": speculation,
        **read_structure(schema, regex),
        **read_chat_options(raw, reasoning, tools, tool_choice),
    }
    if raw and template:
        raise BadRequest("--raw goes without --template: nothing is put around the prompt", "raw")
    import edgeinfer

    with (
        download_progress() as on_progress,
        edgeinfer.load(
            model,
            backend=backend or "",
            kv=kv,
            context=context,
            threads=threads,
            template=template,
            draft_model=draft_model,
            deterministic=deterministic,
            distributed=distributed,
            on_progress=on_progress,
        ) as llm,
    ):
        reply, interrupted = _follow(llm.stream(asked, **options), None if as_json else _Printer())
        for warning in reply.warnings:
            note(f"warning: {warning}")
        if as_json:
            click.echo(json.dumps({"model": llm.name, **dataclasses.asdict(reply), "backend_reason": llm.choice.why}))
        elif not quiet:
            note(_statistics(llm, reply) if stats else _summary(llm, reply))
            if llm.choice.advice:
                note(f"note: {llm.choice.advice}")
        if receipt is not None and not interrupted:
            receipt.write_text(llm.receipt(asked, reply, **options).to_json() + "\n", encoding="utf-8")
    if interrupted:
        raise KeyboardInterrupt


def _follow(stream: Stream, printer: _Printer | None) -> tuple[Reply, bool]:
    """The reply, shown as it is made, and whether Ctrl-C stopped it: what there is by then is kept."""
    builder = ReplyBuilder()
    with _CtrlC(stream) as ctrl_c:
        for event in stream:
            builder.add(event)
            if printer:
                printer.show(event)
    return builder.reply(), ctrl_c.pressed


class _CtrlC:
    """Turns the first Ctrl-C into a cancelled stream, which still ends in order; the second one interrupts."""

    def __init__(self, stream: Stream) -> None:
        self.pressed = False
        self._stream = stream

    def __enter__(self) -> Self:
        self._before: Any = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # as a script's background jobs have it
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
        self._stream.cancel()


class _Printer:
    """Text to stdout at once; that the model is thinking, to stderr, once."""

    def __init__(self) -> None:
        self._line_open = False
        self._thinking = False

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text) if text:
                click.echo(sanitize(text), nl=False)
                sys.stdout.flush()
                self._line_open = not text.endswith("\n")
            case ToolCallDelta(text):
                click.echo(sanitize(text))
                self._line_open = False
            case ReasoningDelta() if not self._thinking:
                self._thinking = True
                note("thinking …")
            case Finished() if self._line_open:
                click.echo()


_ENDINGS = {"stop": "", "length": " (cut by the limit)", "cancelled": " (stopped)", "error": " (failed)"}


def _summary(llm: LLM, reply: Reply) -> str:
    parts = [
        f"{reply.usage.completion} tokens{_ENDINGS[reply.finish_reason]}",
        f"{reply.timings.decode_rate:.1f} tokens/s{_gain(reply)}",
        f"first after {reply.timings.first_token:.2f} s",
        f"{human_bytes(llm.memory_in_use())} memory{_saved(llm, reply)}",
        f"{reply.backend}: {llm.choice.why}",
    ]
    if reply.truncated:
        parts.insert(1, "prompt cut to fit")
    return " · ".join(parts)


def _saved(llm: LLM, reply: Reply) -> str:
    """What the format of keys and values saved of this answer's, where it did."""
    saved = _saved_bytes(llm, reply)
    return f" ({llm.info.kv} keys and values: {human_bytes(saved)} saved)" if saved > 0 else ""


def _saved_bytes(llm: LLM, reply: Reply) -> int:
    if not reply.usage.kv_bytes or llm.info.kv == "exact":
        return 0
    return (reply.usage.prompt + reply.usage.completion) * llm.info.kv_exact_bytes - reply.usage.kv_bytes


def _cache(llm: LLM, reply: Reply) -> str:
    info, saved = llm.info, _saved_bytes(llm, reply)
    parts = [f"{info.kv}, {human_bytes(reply.usage.kv_bytes)}"]
    if saved > 0:
        parts.append(f"{human_bytes(saved)} saved")
    return ", ".join([*parts, info.kv_reason] if info.kv_reason else parts)


def _gain(reply: Reply) -> str:
    """What drafting was worth, where anything was drafted."""
    told = reply.speculation
    if not reply.usage.drafted or not told.steps:
        return ""
    return f" ({told.speedup:.2f}x by drafts, {told.tokens / told.steps:.1f} a step)"


def _drafts(reply: Reply) -> str:
    usage, told = reply.usage, reply.speculation
    if not told.steps:
        return told.why
    parts = [f"{told.tokens / told.steps:.2f} tokens a step", f"{usage.accepted} of {usage.drafted} drafted accepted"]
    if usage.drafted:
        parts.append(f"{told.speedup:.2f}x plain decoding as measured beside it")
    parts.append(f"{told.controller:.1%} of the time to choose them")
    return ", ".join([*parts, told.why] if told.why else parts)


def _by_drafter(reply: Reply) -> list[tuple[str, str]]:
    """What each drafter did, where there was more than one that had anything to say."""
    told = [each for each in reply.speculation.drafters if each.drafted or len(reply.speculation.drafters) > 1]
    return [
        (each.name, ", ".join(filter(None, (f"{each.accepted} of {each.drafted} accepted", each.why)))) for each in told
    ]


def _statistics(llm: LLM, reply: Reply) -> str:
    info, usage, timings = llm.info, reply.usage, reply.timings
    rows = (
        ("model", f"{llm.name} ({info.architecture}, {info.quantization}, {info.parameters / 1e6:,.0f}M parameters)"),
        ("backend", f"{reply.backend}: {llm.choice.why}"),
        ("prompt", f"{usage.prompt} tokens, {usage.cached} reused, {timings.prefill_rate:.1f} tokens/s"),
        ("answer", f"{usage.completion} tokens{_ENDINGS[reply.finish_reason]}, {timings.decode_rate:.1f} tokens/s"),
        ("drafts", _drafts(reply)),
        *((f"  {name}", told) for name, told in _by_drafter(reply)),
        ("time", f"first token after {timings.first_token:.2f} s, {timings.total:.2f} s in all"),
        ("memory", f"{human_bytes(llm.memory_in_use())}, of it weights {human_bytes(info.weight_bytes)}"),
        ("keys, values", _cache(llm, reply)),
        ("context", f"{usage.prompt + usage.completion:,} of {info.context:,} tokens"),
        ("seed", str(reply.seed)),
    )
    return facts(rows, width(sys.stderr))
