"""What a row may say, as tables: OpenAI's names for our options, and those that do nothing here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from edgeinfer.errors import BadInput, BadRequest
from edgeinfer.generation import structured
from edgeinfer.types import SamplingParams

TEXT_FIELDS = frozenset(
    {"custom_id", "id", "prompt", "system", "stop", "model", "user", "regex", "grammar", "tool_choice"}
)
JSON_FIELDS = frozenset(
    {
        "messages",
        "logit_bias",
        "tools",
        "reasoning",
        "template_options",
        "metadata",
        "response_format",
        "schema",
        "choices",
    }
)
_RENAMED = {"max_completion_tokens": "max_tokens"}
_IGNORED = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
_ONLY: dict[str, Any] = {"n": 1, "best_of": 1, "stream": False, "echo": False}
"""Fields with the one value that can be met."""
_OPTIONS = SamplingParams.names() | {"tools", "tool_choice", "reasoning", "template_options", *structured.NAMES}
_KNOWN = _OPTIONS | _RENAMED.keys() | _IGNORED | _ONLY.keys() | {"top_logprobs", "response_format"}
_COLUMNS = _KNOWN | {"custom_id", "id", "prompt", "messages", "system"}


def options_of(body: dict[str, Any], completion: bool) -> dict[str, Any]:
    """A body's fields beside prompt and messages, as options of ``LLM.stream``. null means: not given.

    Raises BadRequest that names the field; an unknown one is never skipped.
    """
    given = {name: value for name, value in body.items() if value is not None and name not in _IGNORED}
    for name, value in given.items():
        if name not in _KNOWN:
            raise BadRequest(f"unknown field {name!r}{_hint(name, _KNOWN)}", name)
        if name in _ONLY and (value != _ONLY[name] or isinstance(value, bool) != isinstance(_ONLY[name], bool)):
            raise BadRequest(f"{name}={value!r:.40}: only {_ONLY[name]!r} is supported", name)
    options = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _ONLY}
    if not completion:
        _chat_logprobs(options)
    if "response_format" in options:
        options.update(_structure(options.pop("response_format")))
    if "stop" in options:
        options["stop"] = _stops(options["stop"])
    if "logit_bias" in options:
        options["logit_bias"] = _biases(options["logit_bias"])
    return options


def check_columns(header: Sequence[str], name: str) -> None:
    """Raises BadInput for a CSV header with an unknown or repeated column, or without a prompt."""
    for column in header:
        if column not in _COLUMNS:
            raise BadInput(f"{name}: line 1: unknown column {column!r}{_hint(column, _COLUMNS)}")
        if header.count(column) > 1:
            raise BadInput(f"{name}: line 1: two columns are named {column!r}")
    if ("prompt" in header) == ("messages" in header):
        raise BadInput(f"{name}: line 1: expected a header with a column named either 'prompt' or 'messages'")


def _chat_logprobs(options: dict[str, Any]) -> None:
    """A chat asks with a boolean for logprobs, and with a number for those of the likeliest tokens."""
    wanted, top = options.pop("logprobs", False), options.pop("top_logprobs", None)
    if not isinstance(wanted, bool):
        raise BadRequest(f"logprobs={wanted!r:.40}: expected true or false; top_logprobs holds the number", "logprobs")
    if top is not None and not wanted:
        raise BadRequest("top_logprobs without logprobs=true", "top_logprobs")
    if wanted:
        options["logprobs"] = top or 0


def _structure(value: Any) -> dict[str, Any]:
    """OpenAI's response_format as an option: any JSON object, a schema, or text, which is no limit."""
    match value:
        case {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"schema": schema}
    raise BadRequest(
        f"response_format={value!r:.60}: expected the type text, json_object, or json_schema with a schema",
        "response_format",
    )


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise BadRequest(f"stop={value!r:.40}: expected a string or a list of strings", "stop")
    return stops


def _biases(value: Any) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise BadRequest(
            f"logit_bias={value!r:.40}: expected token ids with numbers, {{'42': -1.5}}", "logit_bias"
        ) from None


def _hint(name: str, known: frozenset[str] | set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
