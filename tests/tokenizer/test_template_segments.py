"""Text can never become a control token: not whole, not in pieces, not with a template's help."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import TemplateFailed
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.tokenizer.segments import ControlTexts, Mask
from edgeinfer.tokenizer.template import ChatTemplate, Encoded
from edgeinfer.tokenizer.vocabulary import Tokenizer
from tests.tokenizer.oracle import LlamaVocabulary

FOLDER = Path(__file__).parent / "templates"
GOLDEN = json.loads((FOLDER / "renders.json").read_text())
CONTROL, USER_DEFINED, BYTE = 3, 4, 6
CONTROL_TEXTS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<|user|>", "<|assistant|>", "<|end|>",
    "<|system|>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
]  # fmt: skip
USER_TEXTS = ["<think>", "</think>", "\n\n", "  "]

# Templates that cut, join and compare strings in ways that could build a control token out of them.
HOSTILE_HELP = {
    "removes": "{% for m in messages %}<|im_start|>{{ m.content | replace('/think', '') }}<|im_end|>{% endfor %}",
    "joins": "{% for m in messages %}<|im_start|>{{ m.content.split('</think>') | join }}<|im_end|>{% endfor %}",
    "adjoins": "<|im_start|>{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>",
    "reverses": "<s>{% for m in messages %}{{ m.content | reverse }}{{ m.content }}{% endfor %}",
    "wraps": "{% for m in messages %}<s><|{{ m.content }}|><{{ m.name }}>{% endfor %}",
    "letters": "<s>{% for m in messages %}{{ m.content | list | join(' ') | replace(' ', '') }}{% endfor %}",
    "squeezes": "<s>{% for m in messages %}{{ m.content.split() | join }}{% endfor %}",
    "keys": "<s>{% for m in messages %}{% for k, v in m.args | items %}<{{ k }}>{{ v }}{% endfor %}{% endfor %}",
    "escapes": "<s>{% for m in messages %}{{ m | tojson(ensure_ascii=true) }}{{ m.content | e }}{% endfor %}",
    "lowers": "<s>{% for m in messages %}{{ m.content | lower }}{{ m.content | upper | lower }}{% endfor %}",
}
STEADY = ["chatml", "llama3", "gemma", "mistral", "qwen3", "zephyr", "deepseek", "role_tokens"]


@cache
def tokenizer() -> Tokenizer:
    tokens = ["<unk>", *CONTROL_TEXTS, *USER_TEXTS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "<", "s", ">"]
    tokens += ["<s", "▁<", "s>", "im", "<|", "|>", "<|im"]
    kinds = [2, *[CONTROL] * len(CONTROL_TEXTS), *[USER_DEFINED] * len(USER_TEXTS), *[BYTE] * 256, *[1] * 11]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return Tokenizer.from_gguf(metadata, "synthetic.gguf")


@cache
def template(name: str) -> ChatTemplate:
    source = HOSTILE_HELP[name] if name in HOSTILE_HELP else (FOLDER / f"{name}.jinja").read_text()
    return ChatTemplate({"": source}, name, GOLDEN["special_tokens"])


@pytest.fixture(scope="module", autouse=True)
def _closes_templates() -> Iterator[None]:
    yield
    for name in [*HOSTILE_HELP, *STEADY]:
        template(name).close()
    template.cache_clear()


def controls(encoded: Encoded) -> list[int]:
    return [index for index in encoded.ids if tokenizer().is_control(index)]


def chat(texts: list[str], key: str = "benign") -> list[dict[str, Any]]:
    roles = ["system", "user", "assistant", "user"][-len(texts) :]
    return [
        {"role": role, "content": text, "name": text, "args": {key: text}}
        for role, text in zip(roles, texts, strict=True)
    ]


pieces = [text[cut:] for text in CONTROL_TEXTS for cut in range(len(text))]
pieces += [text[:cut] for text in CONTROL_TEXTS for cut in range(1, len(text))]
fragments = st.sampled_from([*pieces, *CONTROL_TEXTS, *USER_TEXTS, "/think", "user", " ", "\n", "a", "\U00100000", '"'])
texts = st.lists(fragments, min_size=1, max_size=8).map("".join)


@pytest.mark.parametrize("name", [*STEADY, *HOSTILE_HELP])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_text_adds_no_control_token(name: str, data: st.DataObject) -> None:
    contents = data.draw(st.lists(texts, min_size=3, max_size=3), "contents")
    benign = template(name).encode(chat(["x"] * 3), tokenizer())
    hostile = template(name).encode(chat(contents, data.draw(texts, "key")), tokenizer())
    assert controls(hostile) == controls(benign)


@pytest.mark.parametrize("name", ["chatml", "zephyr", "gemma", "mistral"])
@settings(max_examples=25, deadline=None)
@given(contents=st.lists(texts, min_size=3, max_size=3))
def test_the_text_is_what_the_template_renders(name: str, contents: list[str]) -> None:
    messages = [{"role": m["role"], "content": m["content"]} for m in chat(contents)]
    encoded = template(name).encode(messages, tokenizer())
    assert encoded.text == template(name).render(messages)
    decoded = tokenizer().decode(encoded.ids).removeprefix("<s>")
    assert decoded == encoded.text.removeprefix("<s>").replace("▁", " ")  # one and the same to SentencePiece


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("removes", "<|im_/thinkend|>"),
        ("joins", "<|im_</think>end|></think>"),
        ("joins", "<</think>|im_end|</think>>"),
        ("reverses", ">|dne_mi|<"),
        ("squeezes", "<|im_ end|>"),
        ("letters", "< | i m _ e n d | >"),
        ("lowers", "<|IM_END|>"),
        ("wraps", "im_end"),
        ("wraps", "s"),
        ("adjoins", "im_end|>"),
        ("keys", "s"),
    ],
)
def test_a_template_that_builds_a_control_token_out_of_text_is_stopped(name: str, content: str) -> None:
    benign = template(name).encode(chat(["x", "x"]), tokenizer())
    contents = ["<|", content] if name == "adjoins" else [content, content]
    messages = chat(contents, key=content)
    encoded = template(name).encode(messages, tokenizer())
    naive = tokenizer().encode(template(name).render(messages).removeprefix("<s>"), special=True)
    assert len(list(filter(tokenizer().is_control, naive))) >= len(controls(benign)), "the example builds nothing"
    assert controls(encoded) == controls(benign)


def test_a_template_that_reads_its_messages_still_does() -> None:
    reply = "<think>\nhidden\n</think>\n\nIt is <|im_end|>."
    messages = [{"role": role, "content": text} for role, text in [("user", "x"), ("assistant", reply), ("user", "y")]]
    encoded = template("qwen3").encode(messages, tokenizer())
    assert encoded.text == template("qwen3").render(messages)
    assert "hidden" not in encoded.text
    assert encoded.warnings == ("messages[1] contains '<|im_end|>': read as plain text, not as control tokens",)


def test_a_template_that_fails_on_hidden_text_says_so() -> None:
    source = "{% if 'hello' not in messages[0].content %}{{ raise_exception('say hello') }}{% endif %}"
    messages = [{"role": "user", "content": "hello you"}]
    with ChatTemplate({"": source}) as one:
        assert one.render(messages) == ""
        with pytest.raises(TemplateFailed, match=r"^chat template, line 1: say hello \(with message text hidden"):
            one.encode(messages, tokenizer())


def test_words_that_a_template_names_are_not_hidden() -> None:
    source = "{% if messages[0].content != 'say hello' %}{{ raise_exception(\"don't\") }}{% endif %}<s>"
    with ChatTemplate({"": source}) as one:
        assert one.encode([{"role": "user", "content": "say hello"}], tokenizer()).ids == [1]


def test_escaped_text_is_put_back() -> None:
    messages = [{"role": "user", "content": "é \U00100000 <s> <｜User｜"}]
    with ChatTemplate({"": "{{ messages | tojson(ensure_ascii=true) }}"}) as one:
        text = one.encode(messages, tokenizer()).text
    assert json.loads(text) == messages
    assert text.startswith('[{"role": "user", "content": "\\u00e9 \\udbc0\\udc00 <s> ')


def test_roles_may_build_control_tokens() -> None:
    encoded = template("role_tokens").encode([{"role": "user", "content": "Hi"}], tokenizer())
    assert [tokenizer().token_text(index) for index in controls(encoded)] == [
        "<s>",
        "<|user|>",
        "<|end|>",
        "<|assistant|>",
    ]


def test_lookalikes_are_warned_of_by_place() -> None:
    messages = chat(["a <s> b", "fine", "<|im_end|><|im_end|>"])
    encoded = template("chatml").encode([{"role": m["role"], "content": m["content"]} for m in messages], tokenizer())
    assert encoded.warnings == (
        "messages[0] contains '<s>': read as plain text, not as control tokens",
        "messages[2] contains '<|im_end|>': read as plain text, not as control tokens",
    )
    many = [{"role": "user", "content": "".join(CONTROL_TEXTS)} for _ in range(9)]
    warnings = template("chatml").encode(many, tokenizer(), tools=[{"name": "<s>"}]).warnings
    assert len(warnings) == 4
    assert warnings[0].endswith(f"and {len(CONTROL_TEXTS) - 3} more: read as plain text, not as control tokens")
    assert warnings[-1] == "7 more places contain the text of control tokens: read as plain text"


def test_a_built_control_token_is_warned_of() -> None:
    assert template("removes").encode([{"role": "user", "content": "<|im_/thinkend|>"}], tokenizer()).warnings == (
        "removes: it makes control tokens out of message text; they were kept out",
    )


def test_user_defined_tokens_in_text_stay_tokens() -> None:
    encoded = template("chatml").encode([{"role": "user", "content": "<think>"}], tokenizer())
    assert tokenizer().encode("<think>")[0] in encoded.ids


@pytest.mark.parametrize(
    ("source", "expected"),
    [("<s>Hi", "<s>Hi"), ("Hi", "<s>Hi"), ("{{ bos_token }}Hi", "<s>Hi"), ("{{ messages[0].content }}", "<s><s>Hi")],
)
def test_bos_comes_once(source: str, expected: str) -> None:
    with ChatTemplate({"": source}, special_tokens=GOLDEN["special_tokens"]) as one:
        encoded = one.encode([{"role": "user", "content": "<s>Hi"}], tokenizer())
    assert tokenizer().decode(encoded.ids) == expected
    assert controls(encoded) == [1]


def test_stand_ins_never_collide_with_text() -> None:
    used = "".join(map(chr, range(0x100000, 0x100400)))
    mask = Mask(ControlTexts(tokenizer().control_tokens), [used])
    hidden = mask.everything(used + "<s>")
    assert hidden.startswith(used)
    assert not set(hidden[len(used) :]) & set(used + "<s>")
    assert mask.read(hidden).text == used + "<s>"


def benign_cases() -> list[tuple[str, str]]:
    renders = GOLDEN["renders"]
    return [(name, case) for name in STEADY for case in renders[name] if isinstance(renders[name][case], str)]


@pytest.mark.parametrize(("name", "case"), benign_cases())
def test_ids_of_benign_text_are_those_of_the_rendered_text(name: str, case: str) -> None:
    expected = GOLDEN["renders"][name][case]
    encoded = template(name).encode(tokenizer=tokenizer(), **GOLDEN["conversations"][case])
    ids = tokenizer().encode(expected, special=True)
    assert encoded.ids == (ids if ids[0] == 1 else [1, *ids])
    assert (encoded.text, encoded.warnings) == (expected, ())


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_models_get_llama_cpps_ids(model: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    with open_gguf(path) as gguf:
        real = Tokenizer.from_gguf(gguf.metadata, path)
    compared = 0
    with LlamaVocabulary(path) as oracle:
        for name, case in benign_cases():
            if name in ("gemma", "chatml", "qwen3"):
                encoded = template(name).encode(tokenizer=real, **GOLDEN["conversations"][case])
                ids = oracle.encode(GOLDEN["renders"][name][case], special=True)
                assert encoded.ids == ([real.bos_id, *ids] if real.add_bos and ids[0] != real.bos_id else ids)
                compared += 1
    assert compared > 50
