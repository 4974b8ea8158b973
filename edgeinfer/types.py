"""The small frozen values that cross the seams: parameters in, events out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from edgeinfer.errors import BadRequest

Message: TypeAlias = Mapping[str, Any]
"""One chat turn, OpenAI-shaped: ``{"role": "user", "content": "Hi"}``."""

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to end. Every default is a field here and nowhere else.

    The filters apply in the order of llama.cpp: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p,
    min-p, XTC, temperature. ``temperature=0`` is greedy: the best token after bias and penalties.
    """

    max_tokens: int = 1024
    temperature: float = 0.7
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical_p: float = 1.0  # 1: off
    top_n_sigma: float = 0.0  # 0: off
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = 0  # tokens looked back on; 0: all of them
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: bool = False  # version 2; replaces the filters from top-k to XTC
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64  # tokens looked back on; 0: all of them
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: a new one each time, reported in the reply
    stop: Sequence[str] = ()  # a string, or several; kept as a tuple
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; n: the chosen token and the n most likely ones

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            _check_number(name, getattr(self, name), low, high)
        for name in ("mirostat", "ignore_eos"):
            if not isinstance(value := getattr(self, name), bool):
                raise BadRequest(f"{name}={value!r}: expected true or false", name)
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**64):
            raise BadRequest(f"seed={self.seed!r}: expected a whole number from 0 to 2^64 - 1", "seed")
        if self.logprobs is not None:
            _check_number("logprobs", self.logprobs, 0, 64, whole=True)
        for name in ("stop", "dry_breakers"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if any(len(text) > _LONGEST_BREAKER for text in self.dry_breakers):
            raise BadRequest(f"dry_breakers: a text of more than {_LONGEST_BREAKER} characters", "dry_breakers")
        _check_bias(self.logit_bias)

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-6  # logits over that leave float32, and the best token has it all

    @classmethod
    def names(cls) -> frozenset[str]:
        return frozenset(item.name for item in fields(cls))


_INT_MAX = 2**31 - 1  # the upper bound of every parameter that is a whole number
_LONGEST_BREAKER = 40  # as in llama.cpp; each is looked for in every token of the vocabulary
_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, _INT_MAX),
    "temperature": (0, 100),
    "top_k": (0, _INT_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (0, 100),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dry_multiplier": (0, 100),
    "dry_base": (1, 100),
    "dry_allowed_length": (1, _INT_MAX),
    "dry_window": (0, _INT_MAX),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "penalty_window": (0, _INT_MAX),
}


def _check_number(name: str, value: object, low: float, high: float, whole: bool = False) -> None:
    whole = whole or high == _INT_MAX
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise BadRequest(f"{name}={value!r:.40}: expected a {'whole ' if whole else ''}number", name)
    if not low <= value <= high:  # nor is NaN
        raise BadRequest(f"{name}={value}: expected {_interval(low, high)}", name)


def _is_number(value: object) -> bool:
    """Whether value is a number that a float can hold, infinity included."""
    try:
        return isinstance(value, (int, float)) and not math.isnan(value)
    except OverflowError:
        return False


def _check_bias(bias: object) -> None:
    rows = bias.items() if isinstance(bias, Mapping) else [("", bias)]
    for token, value in rows:
        if type(token) is not int or not _is_number(value):
            found = f"{token!r}: {value!r:.40}" if isinstance(bias, Mapping) else f"{bias!r:.40}"
            raise BadRequest(f"logit_bias: {found}; expected a mapping of token ids to numbers", "logit_bias")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A string, or several, as a tuple of strings that are not empty."""
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (value,)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadRequest(f"{name}: {text!r:.40}; expected a string that is not empty, or several", name)
    return texts


def _interval(low: float, high: float) -> str:
    return f"{low:g} or more" if high == _INT_MAX else f"{low:g} to {high:g}"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A chosen token, its natural-log probability before any filter, and the most likely ones at its place."""

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. ``cached`` of the prompt were not computed again; ``completion`` counts the token that ended the answer
    too, which ``Reply.ids`` leaves out; ``drafted`` and ``accepted`` are speculation's. ``kv_bytes``: memory that
    the keys and values of prompt and answer took in the end."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    kv_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and tokens a second, as one request saw them."""

    first_token: float = 0.0  # from submission to the first token, waiting included
    total: float = 0.0
    prefill_rate: float = 0.0  # prompt tokens computed / time to the first token
    decode_rate: float = 0.0  # tokens after the first / time after the first


AUTO, OFF = "auto", "off"
DRAFTERS = {
    "suffix": "copies from this text and earlier answers",
    "structured": "follows the grammar that the answer keeps to",
    "mtp": "the model's own heads for further tokens",
    "diffusion": "the same weights, a block at a time",
    "draft_model": "a second, smaller model",
    "draft_model_sampled": "the same, drawing: accepted more often, and a seed gives another text than without it",
    "layer_skip": "the model's own first layers",
}
"""Every drafter there is; which of them a loaded model has, ``ModelInfo.drafters`` says."""


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What one drafter did for one request."""

    name: str
    drafted: int = 0  # tokens that were verified
    accepted: int = 0
    why: str = ""  # why no more was drafted; empty where nothing held it back


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafting did for one request; ``Usage`` counts the drafted tokens. Tokens a step are tokens / steps."""

    steps: int = 0  # of decoding, each of which reads the weights once
    tokens: int = 0  # that came of them
    speedup: float = 1.0  # against plain decoding, from plain steps measured in the same process
    why: str = "off"  # why no more was drafted; empty where nothing held it back
    drafters: tuple[DrafterReport, ...] = ()
    controller: float = 0.0  # share of the time that went into choosing what to draft


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that was made since the last event, and the tokens it came from. Never ends inside a character.

    ``step`` counts the steps of the model up to the last of these tokens: between two events, tokens / steps is what
    a step gave, more than one where drafts came true.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    step: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Like TextDelta, for what the model thinks before it answers."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    step: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called. ``id`` names it in the ``tool`` message that answers it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Calls of tools, whole ones; ``text`` is how the model wrote them."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    step: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every stream."""

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    truncated: bool = False  # the prompt was cut to fit
    stop: str | None = None  # the stop string that ended it
    backend: str = ""  # "mlx (cpu)"
    warnings: tuple[str, ...] = ()  # what the user should know of the prompt: look-alikes of control tokens
    speculation: Speculation = Speculation()


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta
Event: TypeAlias = Delta | Finished


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. ``ids`` are the tokens made, the one that ended the answer left out."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    truncated: bool = False
    stop: str | None = None
    backend: str = ""
    warnings: tuple[str, ...] = ()
    speculation: Speculation = Speculation()
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> Message:
        """The answer as the next message of its conversation; calls of tools are answered by ``tool`` messages."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.tool_calls
            ]
        return message


class ReplyBuilder:
    """Puts the events of one stream together to a Reply."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._tool_calls: list[ToolCall] = []
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._finished = event
            return
        if isinstance(event, ToolCallDelta):
            self._tool_calls.extend(event.calls)
        else:
            (self._text if isinstance(event, TextDelta) else self._reasoning).append(event.text)
        self._ids.extend(event.ids)
        self._logprobs.extend(event.logprobs)

    def reply(self) -> Reply:
        """The whole answer; call it after Finished, with which every stream ends that does not raise."""
        if self._finished is None:
            raise ValueError("the stream has not finished")
        shared = {item.name: getattr(self._finished, item.name) for item in fields(Finished)}
        return Reply(
            text="".join(self._text),
            ids=tuple(self._ids),
            reasoning="".join(self._reasoning),
            logprobs=tuple(self._logprobs),
            tool_calls=tuple(self._tool_calls),
            **shared,
        )
