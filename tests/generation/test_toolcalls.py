"""Calls of tools are read in each format, in any pieces; what is no call stays text, and nothing is run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.generation.reasoning import Segment
from edgeinfer.generation.toolcalls import FORMATS, Tools, expected
from edgeinfer.generation.toolfinder import ToolFinder
from edgeinfer.tokenizer.messages import plain_messages

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
TYPES = {"weather": {"place": "string", "days": "integer"}}
PARIS: dict[str, Any] = {"place": "Paris", "days": 3}
TEXTS = {
    "harmony": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"place":"Paris","days":3}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"place": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"place": "Paris", "days": 3}, "id": "abcdefghi"}]',
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"place": "Paris", "days": 3}',
    "gemma": '<|tool_call>call:weather{days:3,place:<|"|>Paris<|"|>}<tool_call|>',
    "function-gemma": "<start_function_call>call:weather{days:3,place:<escape>Paris<escape>}<end_function_call>",
    "phi": '<|tool_call|>[{"name": "weather", "arguments": {"place": "Paris", "days": 3}}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "weather", "arguments": {"place": "Paris", "days": 3}}]',
    "command": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": '
    '{"place": "Paris", "days": 3}}]<|END_ACTION|>',
    "tagged": '<tool_call>\n{"name": "weather", "arguments": {"place": "Paris", "days": 3}}\n</tool_call>',
    "python-tag": '<|python_tag|>{"name": "weather", "parameters": {"place": "Paris", "days": 3}}',
    "python": "[weather(place='Paris', days=3)]",
    "json": '{"name": "weather", "parameters": {"place": "Paris", "days": 3}}',
}
OTHER_WAYS = [
    ("tagged", "<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>"
     "\n<arg_value>3</arg_value>\n</tool_call>"),
    ("tagged", "<tool_call>\n<function=weather>\n<parameter=place>\nParis\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>"),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"place": "Paris", "days": 3}'),
    ("mistral", '[TOOL_CALLS]weather{"place": "Paris", "days": 3}'),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"place": "Paris", "days": 3}'
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("python-tag", '{"type": "function", "function": {"name": "weather", "arguments": "{\\"place\\": \\"Paris\\", '
     '\\"days\\": 3}"}}'),
    ("harmony", '<|start|>assistant<|channel|>commentary to=functions.weather<|message|>{"place":"Paris","days":3}'),
]  # fmt: skip


def read(pieces: list[str], name: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text and the calls of an answer; checks that every character is accounted for once and in order."""
    finder = ToolFinder(Tools(name, TYPES))
    segments, written = [], 0
    for piece in pieces:
        written += len(piece)
        segments += finder.push(Segment(piece, "text", written))
    segments += finder.finish()
    ends = [segment.end for segment in segments]
    assert ends == sorted(ends)
    assert not ends or ends[-1] <= written
    calls = [(call.name, dict(call.arguments)) for segment in segments for call in segment.calls]
    return "".join(segment.text for segment in segments if segment.kind == "text"), calls


def test_every_format_has_a_text() -> None:
    assert TEXTS.keys() == {row.name for row in FORMATS}


@pytest.mark.parametrize(("name", "text"), [*TEXTS.items(), *OTHER_WAYS])
def test_a_call_in_any_pieces(name: str, text: str) -> None:
    for size in (1, 2, 3, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(pieces, name) == ("", [("weather", PARIS)]), size


@pytest.mark.parametrize("row", [row for row in FORMATS if row.starts], ids=lambda row: row.name)
def test_text_before_a_call_stays(row: Any) -> None:
    text = f"Let me look.\n\n{TEXTS[row.name]}"
    for size in (1, 5, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(pieces, row.name) == ("Let me look.", [("weather", PARIS)])


@pytest.mark.parametrize("row", [row for row in FORMATS if row.end], ids=lambda row: row.name)
def test_several_calls_and_text_after_them(row: Any) -> None:
    text = f"{TEXTS[row.name]}\n{TEXTS[row.name]}\nThere."
    assert read([text], row.name) == ("There.", [("weather", PARIS)] * 2)
    ids = [call.id for segment in _segments(text, row.name) for call in segment.calls]
    assert len(set(ids)) == 2
    assert all(len(id_) == 9 and id_.isalnum() for id_ in ids)


def _segments(text: str, name: str) -> list[Segment]:
    finder = ToolFinder(Tools(name))
    return [*finder.push(Segment(text, "text", len(text))), *finder.finish()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tagged", "<tool_call>not a call</tool_call>"),
        ("tagged", '<tool_call>{"name": 3}</tool_call>'),
        ("tagged", '<tool_call>{"name": "a", "arguments": [1]}</tool_call>'),
        ("tagged", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("tagged", "<tool_call>\n<function=a>x</function> and more</tool_call>"),
        ("tagged", "<tool_call>"),
        ("tagged", "<tool_cal"),
        ("mistral", "[TOOL_CALLS] I would call weather"),
        ("deepseek", "<｜tool▁calls▁begin｜>weather<｜tool▁calls▁end｜>"),
        ("gemma", "<|tool_call>call:weather{place:}<tool_call|>"),
        ("python", "[weather(3)]"),
        ("python", "[weather(**{})]"),
        ("python", "[weather(place=open('x'))]"),
        ("python", "[weather(place=b'x')]"),
        ("python", "[weather(place=1e999)]"),
        ("python", "[" * 5000),
        ("python", "[]"),
        ("json", "{}"),
        ("json", "[1, 2]"),
        ("json", "{ braces in prose }"),
        ("json", "Text with {braces} in it"),
        ("harmony", "<|channel|>commentary to=functions.weather<|message|>{broken"),
    ],
)
def test_what_is_no_call_stays_text(name: str, text: str) -> None:
    assert read([text], name) == (text, [])
    assert read(list(text) if len(text) < 1000 else [text], name) == (text, [])


@settings(deadline=None)
@given(st.lists(st.text(" <tool_cal>/{}\n", max_size=6), max_size=8))
def test_ordinary_text_is_never_eaten(pieces: list[str]) -> None:
    text = "".join(pieces)
    if "<tool_call>" not in text:
        assert read(pieces, "tagged") == (text, [])


def test_values_are_typed_by_the_tool_s_own_schema() -> None:
    text = "<tool_call>weather<arg_key>place</arg_key><arg_value>7</arg_value></tool_call>"
    assert read([text], "tagged") == ("", [("weather", {"place": "7"})])
    text = "<tool_call>other<arg_key>n</arg_key><arg_value>7</arg_value></tool_call>"
    assert read([text], "tagged") == ("", [("other", {"n": 7})])


def test_the_template_says_which_format() -> None:
    assert expected("{{ messages }}", [WEATHER]) is None
    for row in FORMATS:
        found = expected("tools " + " ".join(row.marks), [WEATHER])
        assert found == Tools(row.name, TYPES)
    assert expected("tools", [{"name": "f"}]) == Tools("json", {"f": {}})
    assert expected("tools", [{"function": 3}, {"parameters": 3}]) == Tools("json", {"": {}})


def test_templates_get_arguments_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Paris"}'}}
    (message,) = plain_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {"place": "Paris"}
    call["function"] = {"name": "weather", "arguments": "broken"}
    (message,) = plain_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == "broken"
