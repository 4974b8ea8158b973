"""What is asked of the engine, checked at the door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeinfer.backends.base import ModelInfo
from edgeinfer.errors import BadRequest
from edgeinfer.generation.context import fit_tokens
from edgeinfer.generation.reasoning import Reasoning
from edgeinfer.generation.toolcalls import Tools
from edgeinfer.types import AUTO, OFF, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as token ids, and how to continue it."""

    ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    truncated: bool = False  # the prompt was cut before; passed on to Finished
    end_ids: frozenset[int] | None = None  # tokens that end the answer; None: the tokenizer's
    reasoning: Reasoning | None = None  # None: no thoughts are looked for
    tools: Tools | None = None  # None: no calls are looked for
    warnings: Sequence[str] = ()  # passed on to Finished
    grammar: str = ""  # what the answer keeps to, as ``structured.compiled`` gives it
    speculation: str = AUTO  # who drafts: "auto", "off", or a drafter by name

    def check(self, info: ModelInfo) -> None:
        """Raises BadRequest for what the model cannot do, ContextLimit for a prompt that does not fit."""
        ids = np.asarray(self.ids)
        if not ids.size:
            raise BadRequest("the prompt is empty; give at least one token", "prompt")
        _check_ids(ids, info.vocab_size, "prompt")
        if self.params.logit_bias:
            _check_ids(np.asarray(list(self.params.logit_bias)), info.vocab_size, "logit_bias")
        if self.speculation not in (AUTO, OFF, *info.drafters):
            raise BadRequest(
                f"speculation={self.speculation!r}: this model has {', '.join(info.drafters) or 'no drafters'}",
                "speculation",
            )
        fit_tokens(self.ids, info.context, self.params.max_tokens, None, "refuse")


def _check_ids(ids: np.ndarray, vocab_size: int, parameter: str) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadRequest(f"{parameter}: expected a flat list of token ids", parameter)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise BadRequest(f"{parameter}: token id {outside[0]} is outside the vocabulary of {vocab_size:,}", parameter)
