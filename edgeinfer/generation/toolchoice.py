"""Which tool a model has to call: the grammar of an answer that is one call, in the way that its template teaches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from edgeinfer.errors import BadRequest
from edgeinfer.generation import structured
from edgeinfer.generation.toolcalls import Tools, named

AUTO, NONE, REQUIRED = "auto", "none", "required"
"""As the model likes, no tool, any tool. Any other choice is the name of one."""


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, /, *, special: bool) -> list[int]: ...
    def is_control(self, token: int, /) -> bool: ...
    def token_bytes(self, token: int, /) -> bytes: ...


def checked(value: object, tools: Sequence[Mapping[str, Any]] | None, structure: Collection[str]) -> str:
    """A choice as its word or the name of a tool; OpenAI's object that names a function is taken as well.

    Raises BadRequest for a tool that is not there, and for a forced call beside another ``structure`` of the answer.
    """
    match value:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            value = name
    known = [_name(tool) for tool in tools or ()]
    if not isinstance(value, str) or value not in (AUTO, NONE, REQUIRED, *known):
        words = ", ".join(map(repr, (AUTO, NONE, REQUIRED, *known)))
        raise BadRequest(f"tool_choice={value!r:.60}: expected one of {words:.300}", "tool_choice")
    if not forces(value):
        return value
    if not tools:
        raise BadRequest(f"tool_choice={value!r}: no tools are given", "tool_choice")
    if structure:
        raise BadRequest(f"tool_choice={value!r} and {', '.join(structure)}: an answer keeps to one", "tool_choice")
    return value


def forces(choice: str) -> bool:
    """Whether the answer has to be a call."""
    return choice not in (AUTO, NONE)


def grammar(choice: str, calls: Tools, tools: Sequence[Mapping[str, Any]], vocabulary: Vocabulary) -> str:
    """The grammar of one call of the tools that ``choice`` allows, arguments by their schemas.

    Raises BadRequest for a schema with a keyword that cannot be kept to.
    """
    before, between, behind = named(calls.format).spelling
    rules = []
    for tool in tools:
        name = _name(tool)
        if choice in (REQUIRED, name):
            head = _literal(f"{before}{name}{between}", vocabulary)
            rules.append(" ".join([head, _arguments(tool), _literal(behind, vocabulary)]))
    lark = "start: " + " | ".join(f"call{index}" for index in range(len(rules)))
    lark += "".join(f"\ncall{index}: {rule}" for index, rule in enumerate(rules))
    return structured.assembled(lark)


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _arguments(tool: Mapping[str, Any]) -> str:
    parameters = tool.get("function", tool).get("parameters") or {"type": "object"}
    try:
        return structured.json_rule(parameters)
    except (BadRequest, TypeError) as error:
        raise BadRequest(f"tools: {_name(tool)}: {error}", "tools") from None


def _literal(text: str, vocabulary: Vocabulary) -> str:
    """A text as Lark has it; control tokens are no text and stand by their ids."""
    parts: list[str] = []
    plain = b""
    for token in vocabulary.encode(text, special=True):
        if vocabulary.is_control(token):
            parts += [*_quoted(plain), f"<[{token}]>"]
            plain = b""
        else:
            plain += vocabulary.token_bytes(token)
    return " ".join([*parts, *_quoted(plain)])


def _quoted(text: bytes) -> list[str]:
    return [json.dumps(text.decode("utf-8", "replace"))] if text else []
