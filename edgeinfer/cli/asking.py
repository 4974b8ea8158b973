"""What ``edgeinfer run`` is asked, from the command line, from stdin and from files."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from edgeinfer.cli.terminal import checked_text, read_text
from edgeinfer.errors import BadRequest
from edgeinfer.types import AUTO, OFF, Message


def read_prompt(prompt: str | None, system: str, raw: bool, piped: bool = True) -> str | list[Message]:
    """A raw prompt or messages: the prompt of the command line with that of stdin behind it.

    ``piped=False`` leaves stdin alone: that of mlx.launch is a pipe that never ends.
    """
    system = checked_text(system, "--system")
    given = "" if prompt in (None, "-") else checked_text(prompt or "", "the prompt")
    text = "\n\n".join(part for part in (given, _piped(prompt) if piped else "") if part)
    if not text.strip():
        raise BadRequest('the prompt is empty; give one: edgeinfer run "Why is the sky blue?"', "prompt")
    if raw:
        if system:
            raise BadRequest("--raw goes without --system: nothing is put around the prompt", "raw")
        return text
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]


def read_structure(schema: str, regex: str) -> dict[str, Any]:
    """What the answer keeps to."""
    return {"schema": _json(schema, "schema") or None, "regex": regex or None}


def read_chat_options(raw: bool, reasoning: str, tools: str, tool_choice: str) -> dict[str, Any]:
    """Tools and thoughts, which are the chat template's: a ``raw`` prompt has none."""
    options: dict[str, Any] = {}
    if reasoning != AUTO:
        options["reasoning"] = _reasoning(reasoning)
    if tools:
        options["tools"] = _tools(tools)
    if tool_choice:
        options["tool_choice"] = tool_choice
    if raw and options:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in options)
        raise BadRequest(f"--raw goes without {names}, which the chat template has", "raw")
    return options


def _piped(prompt: str | None) -> str:
    """Text on stdin. Beside a prompt only a pipe or a file is read: what a service has for stdin may never end."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()) or stat.S_ISFIFO(mode) or stat.S_ISREG(mode):
        return read_text(sys.stdin).removesuffix("\n")
    return ""


def _json(text: str, option: str) -> str:
    """JSON, given itself or in a file."""
    if not text or text.lstrip().startswith(("{", "[")):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"--{option} {text:.60}: neither JSON nor a file ({error})", option) from None


def _tools(text: str) -> list[Any]:
    try:
        tools = json.loads(_json(text, "tools"))
    except ValueError as error:
        raise BadRequest(f"--tools: no JSON ({error})", "tools") from None
    return tools if isinstance(tools, list) else [tools]


def _reasoning(text: str) -> int:
    if text == OFF:
        return 0
    if not text.isdecimal():
        raise BadRequest(f"--reasoning {text:.40}: expected auto, off or a number of tokens", "reasoning")
    return int(text)
