"""Receipts: an answer is made again from them, token by token, and what changed is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.errors import BadInput
from edgeinfer.generation import receipts
from edgeinfer.hub.hashes import hashes
from edgeinfer.hub.partial import hash_file
from tests.tiny import tiny_gguf

HELLO = [{"role": "user", "content": "Hello"}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "max_tokens": 12, "ignore_eos": True, "logit_bias": {5: 1.5}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module", params=["mlx", "llama.cpp"])
def llm(request: pytest.FixtureRequest, tiny: Path) -> Iterator[edgeinfer.LLM]:
    with edgeinfer.load(str(tiny), backend=request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("prompt", [HELLO, "Once upon", [1, 5, 9]], ids=["chat", "text", "ids"])
def test_an_answer_is_made_again(llm: edgeinfer.LLM, prompt: Any, tiny: Path) -> None:
    made = llm.chat if prompt is HELLO else llm.generate
    reply = made(prompt, **SAMPLED)
    receipt = receipts.parse(llm.receipt(prompt, reply, **SAMPLED).to_json())
    assert receipt.weights == (hash_file(tiny),)
    assert receipt.request["params"]["seed"] == reply.seed
    replayed = llm.replay(receipt)
    assert replayed.identical
    assert (replayed.reply.ids, replayed.changes) == (reply.ids, ())


def test_the_first_token_that_differs_is_named(llm: edgeinfer.LLM) -> None:
    reply = llm.generate("Once upon", **SAMPLED)
    receipt = llm.receipt("Once upon", reply, **SAMPLED)
    other = replace(receipt, ids=(*reply.ids[:4], reply.ids[4] ^ 1, *reply.ids[5:]))
    replayed = llm.replay(other)
    assert (replayed.difference, replayed.expected, replayed.found) == (4, reply.ids[4] ^ 1, reply.ids[4])
    shorter = llm.replay(replace(receipt, ids=reply.ids[:-1]))
    assert (shorter.difference, shorter.expected, shorter.found) == (11, None, reply.ids[-1])


def test_what_changed_is_said(llm: edgeinfer.LLM) -> None:
    reply = llm.chat(HELLO, **SAMPLED)
    receipt = llm.receipt(HELLO, reply, **SAMPLED)
    other = replace(receipt, weights=("0" * 64,), template="x", made_with={**receipt.made_with, "mlx": "0.1"})
    changes = llm.replay(other).changes
    assert changes[:2] == ("the weights have another SHA-256", "the chat template is another one")
    assert changes[2].endswith("then 0.1")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda values: "no JSON",
        lambda values: [],
        lambda values: {},
        lambda values: {**values, "version": 2},
        lambda values: {**values, "extra": 1},
        lambda values: {**values, "ids": ["a"]},
        lambda values: {**values, "ids": 3},
        lambda values: {**values, "request": {}},
        lambda values: {**values, "request": {**values["request"], "ids": [7]}},
        lambda values: {**values, "request": {**values["request"], "params": {"temperature": -1}}},
        lambda values: {name: value for name, value in values.items() if name != "weights"},
    ],
)
def test_a_spoilt_receipt_is_bad_input(llm: edgeinfer.LLM, spoil: Any) -> None:
    reply = llm.generate("Once upon", **SAMPLED)
    values = asdict(llm.receipt("Once upon", reply, **SAMPLED))
    spoilt = spoil(values)
    with pytest.raises(BadInput):
        receipts.parse(spoilt if isinstance(spoilt, str) else json.dumps(spoilt))


def test_hashes_are_computed_once_and_anew_for_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache" / "hashes.json"
    file.write_bytes(b"one")
    first = hashes([file], cache)
    assert first == [hash_file(file)]
    monkeypatch.setattr("edgeinfer.hub.hashes.hash_file", lambda path: pytest.fail("hashed again"))
    assert hashes([file], cache) == first
    monkeypatch.undo()
    file.write_bytes(b"another")
    assert hashes([file], cache) == [hash_file(file)] != first
    cache.write_text("{broken")
    assert hashes([file], cache) == [hash_file(file)]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgeinfer", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_run_writes_a_receipt_and_replay_reads_it(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    options = ("--raw", "--model", str(tiny), "--max-tokens", "6", "--ignore-eos", "--receipt", str(file))
    made = command("run", "Hi", *options)
    assert made.returncode == 0, made.stderr
    again = command("replay", str(file))
    assert (again.returncode, again.stdout) == (0, "identical: all 6 tokens\n"), again.stderr
    values = json.loads(file.read_text())
    values["ids"][0] ^= 1
    file.write_text(json.dumps(values))
    other = command("replay", str(file), "--json")
    assert other.returncode == 1
    assert json.loads(other.stdout)["place"] == 0
