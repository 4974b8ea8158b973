"""A second model, or half of the same one, drafts: the text stays, and what it is worth is learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.errors import BadRequest, UnsupportedModel
from edgeinfer.generation.sampler import Guesser, Sampler
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.draft_model import ModelDrafter
from edgeinfer.speculation.drafter import Text
from edgeinfer.speculation.sources import draft_model, layer_skip
from edgeinfer.types import SamplingParams
from tests.tiny import tiny_gguf

ANSWER = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 11, 12, 13]


def follower(backend: TapeBackend, prompt: list[int]) -> ModelDrafter:
    chooser = Guesser(Sampler(SamplingParams(temperature=0), 64), 64)
    return ModelDrafter("draft_model", backend, Text(prompt, chooser=chooser), Learned())


def test_it_drafts_on_and_catches_up_after_a_wrong_guess() -> None:
    backend = TapeBackend(ANSWER)
    drafter = follower(backend, [1, 2, 3])
    assert drafter.propose(4).tokens == [5, 6, 7, 8]
    assert drafter.propose(4).tokens == [5, 6, 7, 8], "nothing came since"
    drafter.observe([5, 6, 40])
    assert drafter.propose(1).tokens == [ANSWER[3]]
    drafter.observe([8])
    steps = backend.steps
    assert len(drafter.propose(3).tokens) == 3
    assert backend.steps == steps + 3
    assert backend.open_sequences == 1
    drafter.close()
    drafter.close()
    assert backend.open_sequences == 0


def test_it_stops_at_its_own_context() -> None:
    backend = TapeBackend(ANSWER, context=8)
    drafter = follower(backend, [1, 2, 3])
    assert len(drafter.forecast(12)) == 4
    assert len(drafter.propose(12).tokens) == 4
    drafter.observe([5, 6, 7, 8, 9, 5])
    assert drafter.forecast(12) == []
    assert drafter.propose(12).tokens == ()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return tiny_gguf(folder / "big.gguf", layers=4), tiny_gguf(folder / "small.gguf", layers=1)


@pytest.fixture(scope="module", params=["mlx", "llama.cpp", "mlx isolated"])
def llm(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> Iterator[edgeinfer.LLM]:
    backend, _, isolate = request.param.partition(" ")
    with edgeinfer.load(files[0], backend=backend, threads=1, isolate=bool(isolate), draft_model=files[1]) as loaded:
        yield loaded


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_the_text_is_the_same_with_each_drafter(llm: edgeinfer.LLM, options: dict[str, Any]) -> None:
    plain = llm.generate("Once upon", speculation=False, max_tokens=60, ignore_eos=True, **options)
    for name in llm.info.drafters:
        if name == "draft_model_sampled":
            continue
        reply = llm.generate("Once upon", speculation=name, max_tokens=60, ignore_eos=True, **options)
        if llm.info.backend == "mlx":
            assert reply.ids == plain.ids
        assert [each.name for each in reply.speculation.drafters] == ([] if name == "structured" else [name])


def test_a_second_model_is_loaded_beside_the_first(llm: edgeinfer.LLM) -> None:
    known = {"suffix", "structured", "draft_model", "draft_model_sampled"}
    assert set(llm.info.drafters) - {"layer_skip"} == known
    with pytest.raises(BadRequest, match="this model has suffix, structured"):
        llm.generate("Once", speculation="mtp")


def test_other_words_are_refused_by_name(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", "qwen3", metadata={"general.name": "other"})
    with edgeinfer.load(files[0]) as loaded:
        tokens = [loaded.tokenizer.token_text(token) for token in range(loaded.tokenizer.vocab_size)]
    assert len(tokens) > 10
    changed = _with_tokens(tmp_path / "changed.gguf")
    with pytest.raises(UnsupportedModel, match=r"changed.* cannot draft for .*its token 70 is 'zzz'"):
        edgeinfer.load(files[0], draft_model=changed)
    edgeinfer.load(files[0], draft_model=other).close()


def _with_tokens(path: Path) -> Path:
    from tests.tiny import vocabulary

    tokens = list(vocabulary("llama")["tokenizer.ggml.tokens"])
    tokens[70] = "zzz"
    merges = [merge for merge in vocabulary("llama")["tokenizer.ggml.merges"] if merge.replace(" ", "") in tokens]
    return tiny_gguf(path, metadata={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges})


def test_the_first_layers_share_weights_and_nothing_else(files: tuple[Path, Path]) -> None:
    backend = MLXBackend.load(files[0])
    shallow = backend.shallow(2)
    assert (backend.layers, shallow.layers) == (4, 2)
    assert set(layer_skip(backend)) == {"layer_skip"}
    assert layer_skip(shallow.shallow(1)) == {}
    assert set(draft_model(shallow, backend)) == {"draft_model", "draft_model_sampled"}
    shallow.close()
    assert backend.open([1, 2]).length == 0
    backend.close()
