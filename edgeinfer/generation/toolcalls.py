"""What a model writes to call a tool, one row a format, and how each is read.

A template that knows tools teaches its model one of these ways; its text says which. What does not parse is no call:
the caller then gets the text as it stands.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from edgeinfer.types import ToolCall

_ID_LETTERS = 9  # all that Mistral's templates take

Types: TypeAlias = Mapping[str, Mapping[str, str]]
"""The declared JSON type of each parameter of each tool, where it has one."""
Calls: TypeAlias = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``marks``: a template with all of these texts uses it. A call begins with one of ``starts`` and goes on to
    ``end``, or without one to the end of the answer. ``bare``: an answer that begins with one of these signs is a call.
    ``spelling``: what stands before, between and behind the name and its arguments where a call is forced.
    """

    name: str
    marks: tuple[str, ...]
    starts: tuple[str, ...]
    end: str
    parse: Callable[[str, Types], Calls]  # of what stands between; raises ValueError
    spelling: tuple[str, str, str]
    bare: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """How the calls of one answer are to be read; plain data, to cross a pipe."""

    format: str
    types: Types = field(default_factory=dict)


def expected(template: str, tools: Sequence[Mapping[str, Any]]) -> Tools | None:
    """The way of calling that a template teaches; None where it does not know tools."""
    if "tools" not in template:
        return None
    found = next((row for row in FORMATS if all(mark in template for mark in row.marks)), FORMATS[-1])
    return Tools(found.name, dict(map(_types, tools)))


def identified(calls: Calls, place: int) -> tuple[ToolCall, ...]:
    """Calls with ids that are the same in every run; ``place`` counts the calls before them."""
    return tuple(
        ToolCall(_id(place + index, name, arguments), name, arguments) for index, (name, arguments) in enumerate(calls)
    )


def _id(place: int, name: str, arguments: Mapping[str, Any]) -> str:
    text = json.dumps([place, name, arguments], sort_keys=True)
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()[:_ID_LETTERS]


def _types(tool: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    function = tool.get("function", tool)
    function = function if isinstance(function, Mapping) else {}
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    rows = properties.items() if isinstance(properties, Mapping) else ()
    kinds = ((str(name), row.get("type")) for name, row in rows if isinstance(row, Mapping))
    return str(function.get("name", "")), {name: kind for name, kind in kinds if isinstance(kind, str)}


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    """One call as JSON: its name and arguments under any of the names that models use for them."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    name: Any = next((value[key] for key in ("name", "tool_name", "function") if key in value), None)
    arguments: Any = next((value[key] for key in ("arguments", "parameters", "args") if key in value), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    return name, arguments


def _json(text: str, types: Types = {}) -> Calls:  # noqa: B006
    """One call, a list of them, or several behind each other with ``;``, ``,`` or white space between."""
    found: list[Any] = []
    text = text.strip()
    while text:
        value, end = _DECODER.raw_decode(text)
        found += value if isinstance(value, list) else [value]
        text = text[end:].lstrip("; ,\n\t")
    if not found:
        raise ValueError("no call")
    return [_call(value) for value in found]


def _tagged(text: str, types: Types) -> Calls:
    """Between tags: JSON (Hermes, Qwen), functions with parameters (Qwen Coder), or keys and values (GLM)."""
    body = text.strip()
    if body.startswith("<function="):
        return [_function(match, types) for match in _whole(_FUNCTION, body)]
    if "<arg_key>" in body or _NAME.fullmatch(body):
        name, _, rest = body.partition("<arg_key>")
        pairs = _whole(_PAIR, f"<arg_key>{rest}" if rest else "")
        return [(_name(name), {key.strip(): _typed(value, _name(name), key.strip(), types) for key, value in pairs})]
    return _json(body)


def _function(match: tuple[str, str], types: Types) -> tuple[str, dict[str, Any]]:
    name, body = _name(match[0]), match[1]
    return name, {key: _typed(value.strip("\n"), name, key, types) for key, value in _whole(_PARAMETER, body)}


def _typed(text: str, tool: str, parameter: str, types: Types) -> Any:
    """A value written without quotes: text where the tool says so, else JSON where it is that."""
    if types.get(tool, {}).get(parameter) == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _mistral(text: str, types: Types) -> Calls:
    """A JSON list, or from the eleventh tokenizer on ``name[ARGS]{…}`` for each call."""
    if text.lstrip().startswith(("[", "{")):
        return _json(text)
    found: Calls = []
    for part in text.split("[TOOL_CALLS]"):
        match = _NAMED.fullmatch(part.strip())
        if match is None:
            raise ValueError("expected name[ARGS]{…}")
        found.append(_call({"name": match[1], "arguments": json.loads(match[2])}))
    return found


def _deepseek(text: str, types: Types) -> Calls:
    """``function<sep>name`` and a fenced block (V3), or ``name<sep>{…}`` (V3.1), each between tags of its own."""
    found: Calls = []
    for body in _whole(_DEEPSEEK, text):
        kind, _, rest = body.partition("<｜tool▁sep｜>")
        fenced = _FENCED.fullmatch(rest.strip())
        name, arguments = (fenced[1], fenced[2]) if fenced and kind.strip() == "function" else (kind, rest)
        found.append(_call({"name": name.strip(), "arguments": json.loads(arguments)}))
    return found


def _harmony(text: str, types: Types) -> Calls:
    """``name <|constrain|>json<|message|>{…}``, as gpt-oss addresses ``functions.name`` on its commentary channel."""
    head, _, body = text.partition("<|message|>")
    return [_call({"name": _name(re.split(r"[\s<]", head.strip(), maxsplit=1)[0]), "arguments": json.loads(body)})]


def _gemma(text: str, types: Types) -> Calls:
    """``call:name{key:value}``, keys bare and strings between quote tokens. JSON is taken as well."""
    match = re.fullmatch(r"\s*call:([\w.-]+)(\{.*\})\s*", text, re.DOTALL)
    if match is None:
        raise ValueError("expected call:name{…}")
    try:
        arguments = json.loads(match[2])
    except ValueError:
        arguments = json.loads(_quoted(match[2]))
    return [_call({"name": match[1], "arguments": arguments})]


def _quoted(text: str) -> str:
    """Gemma's object as JSON."""
    parts = re.split(r'<\|"\|>|<escape>', text)
    bare = (re.sub(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:", r'\1"\2":', part) for part in parts[::2])
    quoted = (json.dumps(part) for part in parts[1::2])
    return "".join(piece for pair in zip(bare, [*quoted, ""], strict=True) for piece in pair)


def _python(text: str, types: Types) -> Calls:
    """``[name(key="value"), …]``: read as a literal, never run. JSON is taken as well."""
    if text.lstrip().startswith(("{", "[{")):
        return _json(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
        return [_python_call(call) for call in calls] or _none()
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _python_call(call: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, ast.Call) or call.args or any(item.arg is None for item in call.keywords):
        raise ValueError("expected name(key=value, …)")
    arguments = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    json.dumps(arguments, allow_nan=False)  # neither bytes nor complex numbers nor sets
    return _name(ast.unparse(call.func)), arguments


def _none() -> Calls:
    raise ValueError("no call")


def _name(text: str) -> str:
    name = text.strip().removeprefix("functions.")
    if not _NAME.fullmatch(name):
        raise ValueError("no name")
    return name


def _whole(pattern: re.Pattern[str], text: str) -> list[Any]:
    """All matches; raises where something other than white space is left between them."""
    if pattern.sub("", text).strip():
        raise ValueError("more than calls")
    return pattern.findall(text)


_DECODER = json.JSONDecoder()
_NAME = re.compile(r"[\w.:/-]{1,128}")
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(\{.*\})", re.DOTALL)
_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCED = re.compile(r"([^\n]+)\n```(?:json)?\n(.*?)\n?```", re.DOTALL)

_JSON_NAME, _JSON_ARGUMENTS, _JSON_PARAMETERS = '{"name": "', '", "arguments": ', '", "parameters": '

FORMATS = (
    ToolFormat(  # gpt-oss
        "harmony",
        ("<|channel|>", "functions"),
        ("<|channel|>commentary to=functions.", "<|start|>assistant<|channel|>commentary to=functions."),
        "",
        _harmony,
        ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
    ),
    ToolFormat(
        "deepseek",
        ("<｜tool▁calls▁begin｜>",),
        ("<｜tool▁calls▁begin｜>",),
        "<｜tool▁calls▁end｜>",
        _deepseek,
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ),
    ToolFormat(  # Ministral 3, Magistral
        "mistral-args",
        ("[TOOL_CALLS]", "[ARGS]"),
        ("[TOOL_CALLS]",),
        "",
        _mistral,
        ("[TOOL_CALLS]", "[ARGS]", ""),
    ),
    ToolFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        "",
        _mistral,
        (f"[TOOL_CALLS][{_JSON_NAME}", _JSON_ARGUMENTS, "}]"),
    ),
    ToolFormat(  # Gemma 4
        "gemma",
        ("<|tool_call>",),
        ("<|tool_call>",),
        "<tool_call|>",
        _gemma,
        ("<|tool_call>call:", "", "<tool_call|>"),
    ),
    ToolFormat(
        "function-gemma",
        ("<start_function_call>",),
        ("<start_function_call>",),
        "<end_function_call>",
        _gemma,
        ("<start_function_call>call:", "", "<end_function_call>"),
    ),
    ToolFormat(  # Phi 4 mini
        "phi",
        ("<|tool_call|>", "<|/tool_call|>"),
        ("<|tool_call|>",),
        "<|/tool_call|>",
        _json,
        (f"<|tool_call|>[{_JSON_NAME}", _JSON_ARGUMENTS, "}]<|/tool_call|>"),
    ),
    ToolFormat(  # Granite 3
        "granite",
        ("<|tool_call|>",),
        ("<|tool_call|>",),
        "",
        _json,
        (f"<|tool_call|>[{_JSON_NAME}", _JSON_ARGUMENTS, "}]"),
    ),
    ToolFormat(  # Command A
        "command",
        ("<|START_ACTION|>",),
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
        _json,
        ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "', _JSON_PARAMETERS, "}]<|END_ACTION|>"),
    ),
    ToolFormat(  # Hermes, Qwen, GLM, SmolLM3
        "tagged",
        ("<tool_call>",),
        ("<tool_call>",),
        "</tool_call>",
        _tagged,
        (f"<tool_call>\n{_JSON_NAME}", _JSON_ARGUMENTS, "}\n</tool_call>"),
    ),
    ToolFormat(  # Llama 3.1
        "python-tag",
        ("<|python_tag|>",),
        ("<|python_tag|>",),
        "",
        _json,
        (f"<|python_tag|>{_JSON_NAME}", _JSON_PARAMETERS, "}"),
        bare="{",
    ),
    ToolFormat(  # Llama 3.2 and 4, OLMo
        "python", ("[func_name1(",), (), "", _python, (f"[{_JSON_NAME}", _JSON_PARAMETERS, "}]"), bare="[{"
    ),
    ToolFormat(  # Llama 3.2's default, and whoever teaches JSON in words
        "json", (), (), "", _json, (_JSON_NAME, _JSON_PARAMETERS, "}"), bare="{["
    ),
)
"""In the order in which they are looked for."""


def named(name: str) -> ToolFormat:
    return next(row for row in FORMATS if row.name == name)
