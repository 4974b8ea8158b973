"""Checks a conversation at the door and turns it into the plain data that templates and JSON know."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.errors import BadRequest

_MAX_DEPTH = 64
_MAX_BITS = 1024  # of a whole number; Python refuses to write out far longer ones
_SURROGATE = re.compile("[\ud800-\udfff]")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """OpenAI-shaped messages as new plain dicts.

    Content given as a list of text parts becomes one string, the parts on lines of their own: most templates expect
    a string. As in transformers, keys that hold None are left out, and reasoning given as ``reasoning_content``,
    ``thinking`` or ``reasoning`` is known to the template by the first two names. Lone surrogates become U+FFFD.

    Raises BadRequest with the index of the message and the key.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _bad("messages", messages, "a list of messages")
    if not messages:
        raise BadRequest("messages: the list is empty; give at least one message", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def plain_mappings(items: Any, parameter: str) -> list[dict[str, Any]] | None:
    """Tools or documents: None, or a list of mappings, as new plain data."""
    if items is None:
        return None
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Sequence):
        raise _bad(parameter, items, "a list of mappings")
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise _bad(f"{parameter}[{index}]", item, "a mapping")
    return [plain(item, f"{parameter}[{index}]") for index, item in enumerate(items)]


def plain(value: Any, place: str, depth: int = 0) -> Any:
    """``value`` rebuilt from JSON's types alone; anything else raises BadRequest that names its place."""
    if depth > _MAX_DEPTH:
        raise BadRequest(f"{place}: nested deeper than {_MAX_DEPTH} levels", _parameter(place))
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", str.__str__(value))
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise BadRequest(
            f"{place}: found a number of {value.bit_length()} bits; the limit is {_MAX_BITS}", _parameter(place)
        )
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise _bad(place, name, "strings as keys")
        return {plain(name, place): plain(item, f"{place}.{name}", depth + 1) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise _bad(place, value, "text, numbers, true or false, lists and mappings")


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(place, message, 'a mapping such as {"role": "user", "content": "Hi"}')
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _bad(f"{place}.role", role, "a role such as 'user'")
    result = {key: item for key, item in plain(message, place).items() if item is not None}
    if "content" in result:
        result["content"] = _content(result["content"], f"{place}.content")
    elif not result.get("tool_calls"):
        raise _bad(f"{place}.content", None, "text or a list of text parts")
    if "tool_calls" in result:
        result["tool_calls"] = [_tool_call(call) for call in _listed(result["tool_calls"], f"{place}.tool_calls")]
    reasoning = next((result[key] for key in _REASONING_KEYS if key in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _listed(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(place, value, "a list of calls")
    return value


def _tool_call(call: Any) -> Any:
    """A call as templates want it: with arguments as an object, where OpenAI has them as JSON in a string."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _content(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(place, content, "text or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise _bad(f"{place}[{index}]", kind, '{"type": "text", "text": "..."}; only text is supported')
        texts.append(part["text"])
    return "\n".join(texts)


def _bad(place: str, found: object, expected: str) -> BadRequest:
    shown = "nothing" if found is None else f"{found!r:.40} ({type(found).__name__})"
    return BadRequest(f"{place}: found {shown}, expected {expected}", _parameter(place))


def _parameter(place: str) -> str:
    return re.split(r"[.\[]", place, maxsplit=1)[0]
