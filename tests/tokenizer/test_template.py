"""Chat templates against transformers' own renders, and what they refuse."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import BadRequest, EngineClosed, TemplateFailed
from edgeinfer.tokenizer.template import BUILT_IN, ChatTemplate

FOLDER = Path(__file__).parent / "templates"
GOLDEN = json.loads((FOLDER / "renders.json").read_text())  # made with transformers 5.24
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module", params=sorted(GOLDEN["renders"]))
def published(request: pytest.FixtureRequest) -> Any:
    source = (FOLDER / f"{request.param}.jinja").read_text()
    with ChatTemplate({"": source}, request.param, GOLDEN["special_tokens"]) as template:
        yield request.param, template


@pytest.mark.parametrize("conversation", sorted(GOLDEN["conversations"]))
def test_renders_equal_those_of_transformers(published: Any, conversation: str) -> None:
    name, template = published
    expected = GOLDEN["renders"][name][conversation]
    if isinstance(expected, dict):
        with pytest.raises(TemplateFailed, match=re.escape(expected["error"])):
            template.render(**GOLDEN["conversations"][conversation])
    else:
        assert template.render(**GOLDEN["conversations"][conversation]) == expected


def render(source: str, messages: Any = USER, **variables: Any) -> str:
    with ChatTemplate({"": source}) as template:
        return template.render(messages, **variables)


def test_tojson_escapes_no_html_and_takes_its_arguments() -> None:
    assert render("{{ {'b': '<é>', 'a': \"'\"} | tojson }}") == '{"b": "<é>", "a": "\'"}'
    assert render("{{ {'b': 'é', 'a': 1} | tojson(true, 1, [',', ':'], true) }}") == '{\n "a":1,\n "b":"\\u00e9"\n}'


def test_strftime_now_tells_the_local_time() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    shown = render("{{ strftime_now('%Y-%m-%d') }}")
    assert before <= shown <= datetime.now().strftime("%Y-%m-%d")


def test_generation_blocks_are_rendered_through() -> None:
    source = "{% for m in messages %}\n  {% generation %}\n{{ m.content }}!{% endgeneration %}\n\n{% endfor %}"
    assert render(source) == "Hi!\n"


def test_generation_blocks_keep_their_variables() -> None:
    assert render("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}") == "21"


def test_variables_have_the_defaults_of_transformers() -> None:
    assert render("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}") == "True True True"
    assert render("{{ bos_token is defined }}{{ bos_token }}|") == "False|"
    assert render("{{ level }} {{ on }}", level="high", on=False) == "high False"


def test_parts_of_text_become_one_string() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"


def test_keys_that_hold_nothing_are_left_out() -> None:
    message = {"role": "assistant", "content": None, "name": None, "tool_calls": [{"id": "1"}]}
    assert render("{{ messages[0] | list }}", [message]) == "['role', 'tool_calls']"


def test_lone_surrogates_become_replacement_characters() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "a\ud800b"}]) == "a\ufffdb"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: the list is empty"),
        ("Hi", "messages: found 'Hi' (str), expected a list"),
        ({"role": "user"}, "messages: found {'role': 'user'} (dict)"),
        ([*USER, "Hi"], "messages[1]: found 'Hi' (str), expected a mapping"),
        ([{"content": "Hi"}], "messages[0].role: found nothing"),
        ([{"role": 3, "content": "Hi"}], "messages[0].role: found 3 (int)"),
        ([{"role": "", "content": "Hi"}], "messages[0].role: found '' (str)"),
        ([{"role": "user"}], "messages[0].content: found nothing"),
        ([{"role": "user", "content": None}], "messages[0].content: found nothing"),
        ([{"role": "user", "content": 5}], "messages[0].content: found 5 (int), expected text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0]: found 'image' (str)"),
        ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0]: found 'Hi' (str)"),
        ([{"role": "user", "content": b"Hi"}], "messages[0].content: found b'Hi' (bytes)"),
        ([{"role": "user", "content": "Hi", "extra": {1: 2}}], "messages[0].extra: found 1 (int), expected strings"),
        ([{"role": "user", "content": "Hi", "extra": [object]}], "messages[0].extra[0]: found <class 'object'>"),
    ],
)
def test_malformed_messages_are_named(messages: Any, message: str) -> None:
    with pytest.raises(BadRequest, match="^" + re.escape(message)) as caught:
        render("{{ messages }}", messages)
    assert caught.value.parameter == "messages"
    assert "\n" not in str(caught.value)


def test_a_message_that_contains_itself_is_refused() -> None:
    message: dict[str, Any] = {"role": "user", "content": "Hi"}
    message["self"] = [message]
    with pytest.raises(BadRequest, match="nested deeper than 64 levels"):
        render("{{ messages }}", [message])


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_malformed_tools_and_documents_are_named(name: str) -> None:
    with pytest.raises(BadRequest, match=rf"^{name}\[0\]: found <function"):
        render("x", **{name: [render]})
    with pytest.raises(BadRequest, match=rf"^{name}: found 'x' \(str\), expected a list of mappings"):
        render("x", **{name: "x"})


METADATA = {
    "tokenizer.chat_template": "plain{{ bos_token }}{{ eos_token }}",
    "tokenizer.chat_template.tool_use": "tools",
    "tokenizer.chat_template.rag": "rag",
    "tokenizer.ggml.tokens": ["<pad>", "<s>", "</s>"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def test_a_file_may_hold_several_templates() -> None:
    with ChatTemplate.from_gguf(METADATA, "folder/m.gguf") as template:
        assert template.names == ["tool_use", "rag", "chatml", "raw"]
        assert template.render(USER) == "plain<s></s>"
        assert template.render(USER, tools=[{"name": "f"}]) == "tools"
    with ChatTemplate.from_gguf(METADATA, "folder/m.gguf", "rag") as template:
        assert template.render(USER, tools=[{"name": "f"}]) == "rag"


def test_an_unknown_template_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="no chat template 'nope'; choose one of: tool_use, rag, chatml, raw"):
        ChatTemplate.from_gguf(METADATA, "m.gguf", "nope")


def test_without_a_template_the_choices_are_listed() -> None:
    with (
        ChatTemplate.from_gguf({}, "folder/m.gguf") as template,
        pytest.raises(TemplateFailed, match=r"^chat template of m.gguf: the file has none.*chatml, raw.*--raw"),
    ):
        template.render(USER)
    with ChatTemplate.from_gguf({}, "m.gguf", "chatml") as template:
        assert template.render(USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    with ChatTemplate.from_gguf({}, "m.gguf", "raw") as template:
        assert template.render(USER) == "Hi"


@pytest.mark.parametrize(
    ("source", "dropped"),
    [
        (BUILT_IN["chatml"], []),
        ("{{ messages[-1].content }}", ["the system message"]),
        ("{{ messages[0].content }}", ["the last user message"]),
        ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", ["the last user message"]),
        ("constant", ["the last user message", "the system message"]),
        ("{{ raise_exception('no') if messages[0].role == 'system' }}{{ messages[-1].content }}", []),
    ],
)
def test_templates_that_lose_messages_are_warned_of(source: str, dropped: list[str]) -> None:
    with ChatTemplate({"": source}, "chat template of m.gguf") as template:
        assert template.drops() == tuple(
            f"chat template of m.gguf: it leaves out {what}; the model will not see it" for what in dropped
        )


def test_use_after_close_is_refused() -> None:
    template = ChatTemplate({"": "x"})
    template.close()
    template.close()
    with pytest.raises(EngineClosed):
        template.render(USER)
