"""Lines of the output files, in the shape of OpenAI's batch API."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgeinfer.batch.rows import Row
from edgeinfer.errors import EdgeInferError
from edgeinfer.generation.receipts import Receipt
from edgeinfer.types import Reply, TokenLogprob, ToolCall


def answer_line(row: Row, reply: Reply, model: str, fingerprint: str, receipt: Receipt | None = None) -> dict[str, Any]:
    """A finished row. ``request_id`` is the hash of its id and body, ``system_fingerprint`` that of the job."""
    body = {
        "id": f"{'cmpl' if row.completion else 'chatcmpl'}-{row.digest}",
        "object": "text_completion" if row.completion else "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_text_choice(reply) if row.completion else _chat_choice(reply)],
        "usage": {
            "prompt_tokens": reply.usage.prompt,
            "completion_tokens": reply.usage.completion,
            "total_tokens": reply.usage.prompt + reply.usage.completion,
            "prompt_tokens_details": {"cached_tokens": reply.usage.cached},
        },
        "system_fingerprint": fingerprint,
        "seed": reply.seed,
        "backend": reply.backend,
        "warnings": list(reply.warnings),
    }
    if receipt is not None:
        body["receipt"] = asdict(receipt)
    return {
        "id": f"row-{row.line}",
        "custom_id": row.id,
        "response": {"status_code": 200, "request_id": row.digest, "body": body},
        "error": None,
    }


def error_line(row: Row, error: BaseException | str, fingerprint: str) -> dict[str, Any]:
    """A row that failed, with the line of the input and the reason. ``response`` is null, ``error`` never is."""
    code = _code(error) if isinstance(error, BaseException) else "bad_request"
    message = str(error) if isinstance(error, (str, EdgeInferError)) else f"{type(error).__name__}: {error}"
    return {
        "id": f"row-{row.line}",
        "custom_id": row.id,
        "line": row.line,
        "request_id": row.digest,
        "system_fingerprint": fingerprint,
        "response": None,
        "error": {"code": code, "message": message},
    }


def line_number(line: Mapping[str, Any]) -> int:
    """Where in the input the row of an output line stands."""
    return int(line["id"].removeprefix("row-"))


def is_answer_line(line: Mapping[str, Any]) -> bool:
    match line:
        case {
            "id": str(name),
            "custom_id": str(),
            "response": {"request_id": str(), "body": {"system_fingerprint": str()}},
        }:
            return bool(re.fullmatch(r"row-\d+", name))
    return False


def is_error_line(line: Mapping[str, Any]) -> bool:
    match line:
        case {
            "id": str(name),
            "custom_id": str(),
            "line": int(),
            "request_id": str(),
            "system_fingerprint": str(),
            "error": {"code": str()},
        }:
            return bool(re.fullmatch(r"row-\d+", name))
    return False


def _chat_choice(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in reply.tool_calls]
        message["content"] = reply.text or None
    logprobs = {"content": [_chat_logprob(token) for token in reply.logprobs]} if reply.logprobs else None
    reason = "tool_calls" if reply.tool_calls and reply.finish_reason == "stop" else reply.finish_reason
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _text_choice(reply: Reply) -> dict[str, Any]:
    logprobs = [asdict(token) for token in reply.logprobs] or None
    return {"index": 0, "text": reply.text, "logprobs": logprobs, "finish_reason": reply.finish_reason}


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "top_logprobs": _top(token.top),
    }


def _top(tokens: Sequence[tuple[int, str, float]]) -> list[dict[str, Any]]:
    return [{"token": text, "logprob": logprob} for _, text, logprob in tokens]


def _code(error: BaseException) -> str:
    """``context_limit`` for ContextLimit; what we did not raise ourselves is an internal error."""
    name = type(error).__name__ if isinstance(error, EdgeInferError) else "InternalError"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
