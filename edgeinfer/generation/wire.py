"""Requests, events and errors as JSON, for the pipes between a program and the process that runs its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from edgeinfer import errors
from edgeinfer.backends.base import ModelInfo
from edgeinfer.errors import EdgeInferError, MemoryLimit
from edgeinfer.generation.reasoning import Markers, Reasoning
from edgeinfer.generation.request import Request
from edgeinfer.generation.toolcalls import Tools
from edgeinfer.types import (
    DrafterReport,
    Event,
    Finished,
    ReasoningDelta,
    SamplingParams,
    Speculation,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)

_EVENTS = {kind.__name__: kind for kind in (TextDelta, ReasoningDelta, ToolCallDelta, Finished)}


def pack_request(request: Request) -> dict[str, Any]:
    params = {item.name: getattr(request.params, item.name) for item in fields(SamplingParams)}
    params["logit_bias"] = list(request.params.logit_bias.items())  # JSON's keys are strings
    return {
        "ids": [int(token) for token in request.ids],
        "params": params,
        "truncated": request.truncated,
        "end_ids": None if request.end_ids is None else sorted(request.end_ids),
        "reasoning": None if request.reasoning is None else asdict(request.reasoning),
        "tools": None if request.tools is None else asdict(request.tools),
        "warnings": list(request.warnings),
        "grammar": request.grammar,
        "speculation": request.speculation,
    }


def unpack_request(packed: Mapping[str, Any]) -> Request:
    params = packed["params"] | {"logit_bias": dict(packed["params"]["logit_bias"])}
    params["dry_breakers"] = tuple(params["dry_breakers"])
    return Request(
        ids=packed["ids"],
        params=SamplingParams(**params),
        truncated=packed["truncated"],
        end_ids=None if packed["end_ids"] is None else frozenset(packed["end_ids"]),
        reasoning=None if packed["reasoning"] is None else _reasoning(packed["reasoning"]),
        tools=None if packed["tools"] is None else Tools(**packed["tools"]),
        warnings=packed["warnings"],
        grammar=packed["grammar"],
        speculation=packed["speculation"],
    )


def pack_event(event: Event) -> dict[str, Any]:
    return {"kind": type(event).__name__, **asdict(event)}


def unpack_event(packed: dict[str, Any]) -> Event:
    kind = _EVENTS[packed.pop("kind")]
    if kind is Finished:
        packed["usage"], packed["timings"] = Usage(**packed["usage"]), Timings(**packed["timings"])
        told = packed["speculation"]
        told["drafters"] = tuple(DrafterReport(**each) for each in told["drafters"])
        packed["speculation"] = Speculation(**told)
        packed["warnings"] = tuple(packed["warnings"])
    else:
        packed["ids"] = tuple(packed["ids"])
        packed["logprobs"] = tuple(_logprob(item) for item in packed["logprobs"])
    if kind is ToolCallDelta:
        packed["calls"] = tuple(ToolCall(**call) for call in packed["calls"])
    return kind(**packed)


def pack_error(error: BaseException) -> dict[str, Any]:
    """An error of ours with what it carries; any other one as text, want of memory as what it is."""
    if isinstance(error, MemoryError):
        error = MemoryLimit(f"the engine ran out of memory ({error}); take a smaller model or context", 0, 0)
    if not isinstance(error, EdgeInferError):
        error = EdgeInferError(f"{type(error).__name__}: {error}")
    carried = {name: str(value) if isinstance(value, Path) else value for name, value in vars(error).items()}
    return {"kind": type(error).__name__, "message": str(error), "carried": carried}


def unpack_error(packed: Mapping[str, Any]) -> EdgeInferError:
    kind = getattr(errors, packed["kind"])
    error: EdgeInferError = kind.__new__(kind)  # constructors compose messages; this one is composed
    error.args = (packed["message"],)
    for name, value in packed["carried"].items():
        setattr(error, name, Path(value) if name == "path" and value is not None else value)
    return error


def pack_info(info: ModelInfo) -> dict[str, Any]:
    return asdict(info)


def unpack_info(packed: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(**{**packed, "drafters": tuple(packed["drafters"])})


def _reasoning(packed: Mapping[str, Any]) -> Reasoning:
    opened = packed["opened"]
    formats = tuple(Markers(**item) for item in packed["formats"])
    return Reasoning(formats, Markers(**opened) if opened else None, packed["budget"])


def _logprob(packed: Mapping[str, Any]) -> TokenLogprob:
    top = tuple((token, text, logprob) for token, text, logprob in packed["top"])
    return TokenLogprob(packed["id"], packed["text"], packed["logprob"], top)
