"""Tokens that a grammar forces are drafted, and only speed up what the grammar gives anyway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.speculation.structured import StructuredDrafter
from tests.tiny import tiny_gguf

SCHEMA = {
    "type": "object",
    "properties": {"customer_name": {"enum": ["Ann", "Bob"]}, "order_number": {"enum": [1, 2]}, "ok": {"const": True}},
    "required": ["customer_name", "order_number", "ok"],
    "additionalProperties": False,
}
SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 1},
    {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 2},
    {"temperature": 1, "mirostat": True, "seed": 3},
    {"temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.01, "seed": 4},
    {"temperature": 1, "repetition_penalty": 3, "dry_multiplier": 5, "logprobs": 2, "seed": 5},
]


class Forced:
    """Forces 1 2, then usually 3."""

    def forced(self) -> tuple[list[int], list[int]]:
        return [1, 2], [3]

    def allowed(self, tokens: Any) -> int:
        return len(tokens)


def test_forced_tokens_are_surer_than_usual_ones_until_the_text_says_otherwise() -> None:
    drafter = StructuredDrafter(Forced())
    draft = drafter.propose(9)
    assert list(draft.tokens) == [1, 2, 3]
    assert draft.survival[0] > 0.9
    assert draft.survival[2] < draft.survival[1]
    assert list(drafter.propose(2).tokens) == [1, 2]
    for _ in range(300):
        drafter.propose(9)
        drafter.observe([1, 2, 7])
    draft = drafter.propose(9)
    assert draft.survival[1] > 0.98
    assert draft.survival[2] < 0.05
    drafter.close()


@pytest.mark.parametrize("backend", ["mlx", "llama.cpp"])
def test_an_answer_to_a_schema_is_the_same_with_drafts(tmp_path: Path, backend: str) -> None:
    drafted = 0
    with edgeinfer.load(tiny_gguf(tmp_path / "tiny.gguf"), backend=backend, threads=1) as llm:
        for sampler in SAMPLERS:
            plain = llm.generate("Say", schema=SCHEMA, speculation=False, **sampler)
            for name in ("structured", "auto"):
                reply = llm.generate("Say", schema=SCHEMA, speculation=name, **sampler)
                assert reply.ids == plain.ids
                if backend == "mlx":  # a row of llama.cpp depends on the others by rounding
                    assert reply.logprobs == plain.logprobs
                drafted += reply.usage.drafted
            assert set(json.loads(plain.text)) == set(SCHEMA["required"])  # type: ignore[call-overload]
    assert drafted > 0


def test_a_grammar_cuts_what_it_forbids_from_any_draft() -> None:
    from edgeinfer.generation.structured import Structure, compiled
    from tests.generation.fakes import LETTERS, FakeTokenizer

    tokenizer: Any = FakeTokenizer(LETTERS)
    tokenizer.bos_id = None
    tokenizer.is_control = lambda token: token == 0
    constraint = Structure(tokenizer).constraint(compiled({"regex": "abc[0-9]x"}), [0], len(LETTERS))
    assert constraint.forced() == (tokenizer.encode("abc"), []) or constraint.forced()[0] == tokenizer.encode("abc")
    assert constraint.allowed(tokenizer.encode("abc7xx")) == 5
    assert constraint.allowed(tokenizer.encode("abd")) == 2
    assert constraint.allowed([0, 1]) == 0
    for token in tokenizer.encode("abc7x"):
        constraint.take(token)
    assert constraint.finished
    assert constraint.forced() == ((), ())
