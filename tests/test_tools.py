"""Tools and thoughts through the facade: what the template is told, what comes back, and how it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer import run_batch
from edgeinfer.errors import BadRequest
from edgeinfer.types import ToolCall, ToolCallDelta
from tests.batch.taped import read, taped, write

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Paris"}}</tool_call>'
SOURCE = "{{ tools }} <tool_call> <think> </think> {{ enable_thinking }}"


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Say:{text}="}]


@pytest.fixture(scope="module")
def llm() -> Iterator[edgeinfer.LLM]:
    with taped(source=SOURCE) as loaded:
        yield loaded


def test_a_call_is_an_event_and_part_of_the_reply(llm: edgeinfer.LLM) -> None:
    events = list(llm.stream(say(f"Wait.{CALL}"), tools=[WEATHER], temperature=0))
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [event.text for event in calls] == [CALL]
    reply = llm.chat(say(f"Wait.{CALL}"), tools=[WEATHER], temperature=0)
    assert (reply.text, reply.finish_reason) == ("Wait.", "stop")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("weather", {"place": "Paris"})]
    assert llm.detokenize(reply.ids) == f"Wait.{CALL}"
    message = reply.message
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"place": "Paris"}}
    assert json.loads(json.dumps(message)) == message


def test_without_tools_text_is_text(llm: edgeinfer.LLM) -> None:
    reply = llm.chat(say(CALL), temperature=0)
    assert (reply.text, reply.tool_calls) == (CALL, ())


def test_a_template_without_tools_is_said_to_have_none() -> None:
    with taped() as plain:
        reply = plain.chat(say("Hi"), tools=[WEATHER], temperature=0)
        assert reply.warnings == ("the chat template knows no tools; the model was not told of them",)


def test_thinking_off_tells_the_template_and_closes_the_block() -> None:
    with taped(source=SOURCE) as other:
        for off in (False, 0):
            other.chat(say("Hi"), reasoning=off, temperature=0)
            assert other.template.given["enable_thinking"] is False  # type: ignore[attr-defined]
        assert other.chat(say("Hi"), temperature=0).usage.prompt == len("Say:Hi=")
        assert "enable_thinking" not in other.template.given  # type: ignore[attr-defined]
        closed = other.chat(say("Hi"), reasoning=False, temperature=0).usage.prompt
        assert closed == len("Say:Hi=<think>\n\n</think>\n\n")
        other.chat(say("Hi"), reasoning=False, template_options={"enable_thinking": True}, temperature=0)
        assert other.template.given["enable_thinking"] is True  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", ["on", True, None, -1, 1.5])
def test_reasoning_is_checked(llm: edgeinfer.LLM, bad: Any) -> None:
    with pytest.raises(BadRequest, match=r"reasoning=.*expected 'auto', False or a number of tokens"):
        llm.chat(say("Hi"), reasoning=bad)


def test_a_raw_prompt_has_neither(llm: edgeinfer.LLM) -> None:
    for options in ({"reasoning": 5}, {"tools": [WEATHER]}):
        with pytest.raises(BadRequest, match="need chat messages"):
            llm.generate("Say:x=", **options)


def test_a_batch_row_has_openai_s_shape(llm: edgeinfer.LLM, tmp_path: Path) -> None:
    rows = [
        {"custom_id": "call", "messages": say(CALL), "tools": [WEATHER]},
        {"custom_id": "none", "messages": say(CALL), "tools": [WEATHER], "tool_choice": "none"},
        {"custom_id": "must", "messages": say(CALL), "tools": [WEATHER], "tool_choice": "clock"},
    ]
    result = run_batch(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, temperature=0)
    assert (result.done, result.failed) == (2, 1)
    choices = {row["custom_id"]: row["response"]["body"]["choices"][0] for row in read(tmp_path / "out.jsonl")}
    assert choices["none"]["message"]["content"] == CALL
    call = choices["call"]
    assert call["finish_reason"] == "tool_calls"
    assert call["message"]["content"] is None
    (made,) = call["message"]["tool_calls"]
    assert (made["type"], made["function"]["name"]) == ("function", "weather")
    assert json.loads(made["function"]["arguments"]) == {"place": "Paris"}
    assert "tool_choice" in read(tmp_path / "out.errors.jsonl")[0]["error"]["message"]


def test_calls_cross_the_pipe_to_a_process_of_its_own() -> None:
    from edgeinfer.generation.reasoning import FORMATS, Reasoning
    from edgeinfer.generation.request import Request
    from edgeinfer.generation.toolcalls import Tools
    from edgeinfer.generation.wire import pack_event, pack_request, unpack_event, unpack_request

    event = ToolCallDelta(CALL, (1, 2), (), (ToolCall("abc", "weather", {"place": "Paris", "days": [1]}),))
    assert unpack_event(json.loads(json.dumps(pack_event(event)))) == event
    reasoning = Reasoning(opened=FORMATS[0], budget=7)
    request = Request([1, 2], reasoning=reasoning, tools=Tools("tagged", {"weather": {"place": "string"}}))
    again = unpack_request(json.loads(json.dumps(pack_request(request))))
    assert (again.reasoning, again.tools) == (request.reasoning, request.tools)
