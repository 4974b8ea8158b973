"""Rows of a batch as requests: an id, a hash of all that was asked, a prompt and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from edgeinfer.batch.fields import options_of
from edgeinfer.batch.source import Raw
from edgeinfer.errors import BadRequest
from edgeinfer.generation.prompts import Prompt
from edgeinfer.tokenizer.messages import plain_messages

_MAX_ID = 512  # characters
_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
_ENVELOPE = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True)
class Row:
    """One request. ``digest`` is the same as long as id and body are, however they are written."""

    line: int
    id: str
    digest: str
    prompt: Prompt = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    completion: bool = False  # answered in the shape of /v1/completions
    size: int = 0  # bytes in the input
    problem: str = ""  # why it cannot be answered

    @property
    def seed(self) -> int:
        """What a row without a seed is sampled with: another one for each row, the same in every run."""
        return int(self.digest, 16)


def parse(raw: Raw, plain_is_raw: bool) -> Row:
    """The row of a line. A line that asks for nothing we can do is a row with a ``problem``, never an exception.

    A plain ``{"prompt": …}`` is a user's message, or with ``plain_is_raw`` the beginning of a text.
    """
    value = raw.value
    name = value.get("custom_id", value.get("id"))
    if raw.problem:
        return Row(raw.line, f"row-{raw.line}", _digest(raw.line, raw.problem), problem=raw.problem)
    shown = name if isinstance(name, str) and 0 < len(name) <= _MAX_ID else f"row-{raw.line}"
    digest = _digest(shown, value)
    try:
        if name is not None and shown != name:
            raise BadRequest(f"custom_id={name!r:.40}: expected a string of 1 to {_MAX_ID} characters", "custom_id")
        if "body" in value or "url" in value:
            return _request(raw, shown, digest)
        return _plain(raw, shown, digest, plain_is_raw)
    except BadRequest as error:
        return Row(raw.line, shown, digest, problem=str(error))


def _request(raw: Raw, name: str, digest: str) -> Row:
    """A line of OpenAI's batch format."""
    value = raw.value
    extra = value.keys() - _ENVELOPE
    if extra:
        raise BadRequest(f"unknown field {min(extra)!r} beside body", min(extra))
    if "custom_id" not in value:
        raise BadRequest("no custom_id", "custom_id")
    method, url, body = value.get("method", "POST"), value.get("url", "/v1/chat/completions"), value.get("body")
    if method != "POST":
        raise BadRequest(f"method={method!r:.40}: expected 'POST'", "method")
    key = _URLS.get(url) if isinstance(url, str) else None
    if key is None:
        raise BadRequest(f"url={url!r:.60}: expected {' or '.join(_URLS)}", "url")
    if not isinstance(body, dict):
        raise BadRequest(f"body={body!r:.40}: expected an object", "body")
    if key not in body:
        raise BadRequest(f"body: no {key!r}, which {url} needs", key)
    rest = {name: value for name, value in body.items() if name != key}
    completion = key == "prompt"
    prompt: Prompt = _text(body[key], key) if completion else plain_messages(body[key])
    return Row(raw.line, name, digest, prompt, options_of(rest, completion), completion, raw.size)


def _plain(raw: Raw, name: str, digest: str, plain_is_raw: bool) -> Row:
    rest = {key: item for key, item in raw.value.items() if key not in ("custom_id", "id", "prompt", "messages")}
    system = rest.pop("system", None)
    if ("prompt" in raw.value) == ("messages" in raw.value):
        raise BadRequest("expected either 'prompt' or 'messages'", "prompt")
    if "messages" in raw.value:
        messages = raw.value["messages"]
        if system is not None:
            raise BadRequest("'system' goes with 'prompt'; messages have roles of their own", "system")
        return Row(raw.line, name, digest, plain_messages(messages), options_of(rest, False), size=raw.size)
    text = _text(raw.value["prompt"], "prompt")
    if plain_is_raw:
        if system is not None:
            raise BadRequest("'system' does not go with --raw: nothing is put around the prompt", "system")
        return Row(raw.line, name, digest, text, options_of(rest, True), True, raw.size)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": _text(system, "system")})
    return Row(raw.line, name, digest, messages, options_of(rest, False), size=raw.size)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name}={value!r:.40}: expected a text that is not empty", name)
    return value


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()
