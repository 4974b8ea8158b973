"""A forced call is one that the format's own reader reads, of the tool that was asked for, whatever the model likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import BadRequest
from edgeinfer.generation import toolchoice
from edgeinfer.generation.toolcalls import FORMATS, expected
from tests.generation.test_toolcalls import WEATHER
from tests.tiny import CHATML, tiny_gguf, vocabulary

CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
STRICT = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["place", "days"],
            "additionalProperties": False,
        },
    },
}
ASK = [{"role": "user", "content": "Hello"}]
WILD: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 1000}


def template(marks: tuple[str, ...]) -> str:
    """ChatML that names its tools and teaches a way of calling; a comment is enough for that."""
    return "{% if tools %}{{ tools | tojson }}{% endif %}{# " + " ".join(marks) + " #}" + CHATML


def model(path: Path, marks: tuple[str, ...], control: tuple[str, ...] = ()) -> Path:
    """With ``control`` tokens behind those of every tiny model."""
    words = vocabulary("llama")
    tokens, kinds = words["tokenizer.ggml.tokens"], words["tokenizer.ggml.token_type"]
    keys = {
        "tokenizer.chat_template": template(marks),
        "tokenizer.ggml.tokens": [*tokens, *control],
        "tokenizer.ggml.token_type": [*kinds, *[kinds[-1]] * len(control)],
    }
    embedding = np.random.default_rng(1).standard_normal((len(tokens) + len(control), 64)).astype(np.float32)
    return tiny_gguf(path / "tools.gguf", metadata=keys, tensors={"token_embd.weight": embedding}, context=2048)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
def test_a_forced_call_is_read_back(tmp_path: Path, row: Any, control: bool) -> None:
    found = expected(template(row.marks), [WEATHER])
    assert found is not None
    assert found.format == row.name
    markers = tuple(mark for mark in (*row.starts[:1], row.end) if mark) if control else ()
    with edgeinfer.load(str(model(tmp_path, row.marks, markers)), isolate=False) as llm:
        for seed, choice in enumerate(["required", "weather", "clock"]):
            reply = llm.chat(ASK, tools=[STRICT, CLOCK], tool_choice=choice, seed=seed, **WILD)
            assert reply.finish_reason == "stop"
            (call,) = reply.tool_calls
            assert reply.text == ""
            assert call.name == choice or choice == "required"
            if call.name == "weather":
                assert call.arguments["place"] in ("Paris", "Rome")
                assert call.arguments["days"] <= 9
            else:
                assert call.arguments == {}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[edgeinfer.LLM]:
    with edgeinfer.load(str(model(tmp_path_factory.mktemp("m"), ("<tool_call>",))), isolate=False) as loaded:
        yield loaded


def test_openai_s_object_names_a_tool(llm: edgeinfer.LLM) -> None:
    choice = {"type": "function", "function": {"name": "clock"}}
    reply = llm.chat(ASK, tools=[WEATHER, CLOCK], tool_choice=choice, temperature=0, max_tokens=100)
    assert [call.name for call in reply.tool_calls] == ["clock"]


def test_drafts_change_nothing(llm: edgeinfer.LLM) -> None:
    options: dict[str, Any] = {"tools": [STRICT], "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    plain = llm.chat(ASK, speculation=False, **options)
    assert llm.chat(ASK, **options).ids == plain.ids
    assert llm.chat(ASK, speculation="structured", **options).ids == plain.ids


def test_no_tool_is_told_where_none_may_be_called(llm: edgeinfer.LLM) -> None:
    without = llm.chat(ASK, temperature=0, max_tokens=4)
    none = llm.chat(ASK, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=4)
    assert (none.usage.prompt, none.ids) == (without.usage.prompt, without.ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [WEATHER], "tool_choice": "whether"}, "expected one of 'auto', 'none', 'required', 'weather'"),
        ({"tools": [WEATHER], "tool_choice": 3}, "tool_choice=3: expected one of"),
        ({"tool_choice": "required"}, "no tools are given"),
        ({"tools": [WEATHER], "tool_choice": "required", "regex": "a+"}, "an answer keeps to one"),
        ({"tools": [WEATHER], "tool_choice": "required", "reasoning": 20}, "has no thoughts"),
        ({"regex": "a+", "reasoning": 20}, "has no thoughts"),
        ({"tools": [{"name": "x", "parameters": {"type": "nothing"}}], "tool_choice": "x"}, "^tools: x: schema: "),
    ],
)
def test_what_cannot_be_chosen_is_said(llm: edgeinfer.LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        llm.chat(ASK, **options)


def test_a_template_that_knows_no_tools_cannot_be_made_to_call(tmp_path: Path) -> None:
    model = str(tiny_gguf(tmp_path / "plain.gguf"))
    with (
        edgeinfer.load(model, isolate=False) as plain,
        pytest.raises(BadRequest, match="the chat template knows no tools"),
    ):
        plain.chat(ASK, tools=[WEATHER], tool_choice="required")


def test_the_words_are_those_of_openai() -> None:
    assert [word for word in ("auto", "none", "required", "weather") if toolchoice.forces(word)] == [
        "required",
        "weather",
    ]
