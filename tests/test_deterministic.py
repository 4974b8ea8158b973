"""The same request is the same answer, bit for bit, alone, in company and after others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.generation.opening import Opening
from tests.tiny import tiny_gguf

ASKED: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 20, "ignore_eos": True, "logprobs": 3}
PROMPT = [1, 9, 4] * 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.mark.parametrize("backend", ["mlx", "llama.cpp", "llama.cpp isolated"])
def test_company_changes_nothing(tiny: Path, backend: str) -> None:
    name, _, isolated = backend.partition(" ")
    with edgeinfer.load(str(tiny), backend=name, deterministic=True, isolate=bool(isolated)) as llm:
        alone = llm.generate(PROMPT, **ASKED)
        others = [llm.stream([*PROMPT[:40], place], max_tokens=30, ignore_eos=True, seed=place) for place in range(5)]
        beside = llm.generate(PROMPT, **ASKED)
        for stream in others:
            list(stream)
        after = llm.generate(PROMPT, **ASKED)
    assert beside.ids == after.ids == alone.ids
    assert beside.logprobs == after.logprobs == alone.logprobs


def test_an_opening_crosses_a_pipe() -> None:
    for draft in (None, ("b.gguf", "mlx")):
        opening = Opening("a.gguf", "mlx", 512, 2, "k8v4", draft, True)
        assert Opening.from_json(opening.to_json()) == opening
