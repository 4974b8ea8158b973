"""Answers that keep to a grammar, whatever the model would rather say and however it is sampled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.errors import BadRequest, EdgeInferError
from edgeinfer.generation.structured import compiled
from tests.batch.taped import read, texts, write
from tests.tiny import tiny_gguf

ASK = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "mirostat": True},
    {"temperature": 1, "typical_p": 0.2, "top_n_sigma": 0.5},
    {"temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.01},
    {"temperature": 1, "repetition_penalty": 3, "dry_multiplier": 5, "logprobs": 2},
    {"temperature": 0, "ignore_eos": True},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module", params=["mlx", "llama.cpp", "mlx isolated"])
def llm(request: pytest.FixtureRequest, tiny: Path) -> Iterator[edgeinfer.LLM]:
    backend, _, isolate = request.param.partition(" ")
    with edgeinfer.load(str(tiny), backend=backend, isolate=bool(isolate)) as loaded:
        yield loaded


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_every_sampler_keeps_to_a_grammar(llm: edgeinfer.LLM, sampler: dict[str, Any]) -> None:
    for seed in range(2):
        reply = llm.chat(ASK, regex="(ab|cd){3}[0-9]{2}", seed=seed, **sampler)
        assert re.fullmatch("(ab|cd){3}[0-9]{2}", reply.text)
        assert reply.finish_reason == "stop"
        assert llm.detokenize(reply.ids) == reply.text
        assert llm.generate("Once", choices=["yes", 'n"o'], seed=seed, **sampler).text in ("yes", 'n"o')


def test_a_schema_in_its_three_forms(llm: edgeinfer.LLM) -> None:
    class Pydantic:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return SCHEMA

    compact = "start: %json " + json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
    forms = [{"schema": SCHEMA}, {"schema": json.dumps(SCHEMA)}, {"schema": Pydantic}]
    assert len({compiled(form) for form in forms}) == 1
    for form in (forms[0], {"grammar": compact}):
        reply = llm.chat(ASK, temperature=0, max_tokens=400, **form)
        assert reply.finish_reason == "stop"
        assert re.search(r"\s{25}", reply.text) is None
        value = json.loads(reply.text)
        assert value.keys() == {"ok", "kind"}
        assert isinstance(value["ok"], bool)
        assert value["kind"] in ("a", "b")


def test_an_answer_that_does_not_fit_ends_with_length_and_is_not_mended(llm: edgeinfer.LLM) -> None:
    reply = llm.chat(ASK, regex="[a-z]{200}", max_tokens=5, temperature=0)
    assert reply.finish_reason == "length"
    assert reply.usage.completion == 5
    assert re.fullmatch("[a-z]{5,199}", reply.text)


def test_an_answer_may_end_where_the_grammar_lets_it(llm: edgeinfer.LLM) -> None:
    bias = {token: 50.0 for token in llm.tokenizer.end_ids}
    reply = llm.chat(ASK, regex="a{2,9}", temperature=0, logit_bias=bias)
    assert (reply.text, reply.finish_reason) == ("aa", "stop")


def test_with_and_without_a_grammar_in_one_batch(llm: edgeinfer.LLM, tmp_path: Path) -> None:
    formats = [
        {"type": "text"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["x", "y"]}}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array", "uniqueItems": True}}},
        {"type": "json"},
    ]
    rows: list[Any] = [
        {"custom_id": str(n), "url": "/v1/chat/completions", "body": {"messages": ASK, "response_format": form}}
        for n, form in enumerate(formats)
    ]
    rows.append({"custom_id": "regex", "prompt": "Hello", "regex": "[0-9]{4}"})
    result = edgeinfer.run_batch(
        write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, temperature=0, max_tokens=20, ignore_eos=True
    )
    assert (result.done, result.failed) == (3, 2)
    answers = texts(tmp_path / "out.jsonl")
    assert answers["1"] in ('"x"', '"y"')
    assert re.fullmatch("[0-9]{4}", answers["regex"])
    assert answers["0"] == llm.chat(ASK, temperature=0, max_tokens=20, ignore_eos=True).text
    problems = {row["custom_id"]: row["error"]["message"] for row in read(tmp_path / "out.errors.jsonl")}
    assert problems["2"] == 'schema: Unimplemented keys: ["uniqueItems"]'
    assert "response_format" in problems["3"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"schema": {"not": {"type": "string"}}}, "not"),
        ({"schema": {"type": "strin"}}, "strin"),
        ({"schema": {"type": "string", "minLength": 5, "maxLength": 3}}, "Unsatisfiable"),
        ({"schema": {"type": "string", "format": "no-such"}}, "no-such"),
        ({"schema": "{bad"}, "schema"),
        ({"schema": 3}, "expected a JSON schema"),
        ({"schema": False}, "expected a JSON schema"),
        ({"regex": "[a-"}, "unclosed character class"),
        ({"regex": ""}, "not empty"),
        ({"choices": []}, "expected a list"),
        ({"choices": "yes"}, "expected a list"),
        ({"grammar": "start: xx"}, "unknown name"),
        ({"regex": "a", "choices": ["b"]}, "keeps to one of them"),
    ],
)
def test_what_cannot_be_kept_to_is_an_error_before_anything(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        compiled(options)


@pytest.mark.parametrize("schema", [{}, True, {"enum": [str(n) for n in range(10_000)]}])
def test_odd_schemas_are_kept_to(llm: edgeinfer.LLM, schema: Any) -> None:
    reply = llm.chat(ASK, schema=schema, max_tokens=40, temperature=0)
    if reply.finish_reason == "stop":
        json.loads(reply.text)


def test_a_schema_without_an_answer_is_an_error_that_ends_one_request(llm: edgeinfer.LLM) -> None:
    with pytest.raises(EdgeInferError, match="cannot be kept to"):
        llm.chat(ASK, schema={"$ref": "#"}, max_tokens=40, temperature=0)
    assert llm.chat(ASK, choices=["a"]).text == "a"


def test_the_command(tiny: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edgeinfer", "run", "-m", str(tiny), "-q", "--temperature", "0", *arguments]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    (tmp_path / "schema.json").write_text('{"enum": [17]}')
    assert run("Hi", "--schema", str(tmp_path / "schema.json")).stdout == "17\n"
    assert run("Hi", "--schema", '{"const": 5}').stdout == "5\n"
    assert re.fullmatch("[xyz]{3}\n", run("Hi", "--regex", "[xyz]{3}").stdout)
    for bad in (["--schema", "nowhere.json"], ["--schema", '{"not": {}}'], ["--regex", "("]):
        done = run("Hi", *bad)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
