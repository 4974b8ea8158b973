"""Parameters refuse what makes no sense, and say which one."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from edgeinfer.errors import BadRequest
from edgeinfer.types import Finished, ReasoningDelta, ReplyBuilder, SamplingParams, TextDelta, Timings, Usage


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("max_tokens", 0),
        ("max_tokens", 10**10),
        ("repetition_penalty", 0.0),
        ("dry_base", 0.5),
        ("temperature", 10**400),
        ("logit_bias", {3: -(10**400)}),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", "x"),
        ("seed", 1.5),
        ("seed", True),
        ("logprobs", 65),
        ("logprobs", 1.5),
        ("stop", ("",)),
        ("dry_breakers", ("x" * 41,)),
        ("stop", (1,)),
        ("stop", 5),
        ("dry_breakers", ""),
        ("dry_breakers", [b"a"]),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: "a"}),
        ("logit_bias", {"3": 1.0}),
        ("logit_bias", [(3, 1.0)]),
        ("mirostat", 2),
        ("ignore_eos", None),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name


def test_every_numeric_field_is_checked() -> None:
    for field in fields(SamplingParams):
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
            with pytest.raises(BadRequest, match=field.name):
                SamplingParams(**{field.name: math.nan})


@pytest.mark.parametrize("name", ["stop", "dry_breakers"])
def test_one_string_is_a_tuple_of_one(name: str) -> None:
    assert getattr(SamplingParams(**{name: "END"}), name) == ("END",)
    assert getattr(SamplingParams(**{name: ["a", "b"]}), name) == ("a", "b")
    assert getattr(SamplingParams(**{name: ()}), name) == ()


def test_a_reply_is_its_events() -> None:
    builder = ReplyBuilder()
    builder.add(ReasoningDelta("hm", (1,)))
    builder.add(TextDelta("Hel", (2, 3)))
    builder.add(TextDelta("lo", (4,)))
    with pytest.raises(ValueError, match="not finished"):
        builder.reply()
    builder.add(Finished("stop", Usage(prompt=5, completion=4), Timings(), seed=7, truncated=True, backend="tape"))
    reply = builder.reply()
    assert (reply.text, reply.reasoning, reply.ids) == ("Hello", "hm", (1, 2, 3, 4))
    assert (reply.finish_reason, reply.truncated, reply.seed, reply.backend) == ("stop", True, 7, "tape")
