"""Drafts on real arithmetic: tiny random models and the two real ones say the same with and without, token for token.

Kernels of the native path give a row the same numbers whatever rows share its step. MLX and BLAS on their own do not,
nor does llama.cpp: there a first difference has to be a near-tie.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import ops
from edgeinfer.backends.base import Backend
from edgeinfer.backends.llama_cpp import LlamaCppBackend
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.speculation.speculation import Shared
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Finished, SamplingParams
from tests.generation.fakes import FakeTokenizer, ids_of
from tests.generation.identity import PROMPTS, TOGETHER, compare, long_prompt
from tests.speculation.drafters import Eager, chance, eager, only
from tests.tiny import tiny_gguf

GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, seed=4, max_tokens=64, ignore_eos=True)
NEAR_TIE = 0.05  # of log-probability

needs_invariance = pytest.mark.skipif(
    not getattr(ops, "fused", False), reason="without the native path rows of a step differ by rounding"
)


def always_suffix(backend: Backend) -> Shared:
    """Verifies whatever the suffix drafter proposes."""
    shared: Eager = only(
        backend.info, lambda text: SuffixDrafter(text.prompt, Survival.prior(), shared.store.snapshot()), Eager
    )
    return shared


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", request.param)


def test_tiny_models_say_the_same_alone_and_together(tiny: Path) -> None:
    tokenizer: Any = FakeTokenizer([b"<end>", *(b"%d " % index for index in range(1, 400))])
    source = random.Random(8)
    requests = [
        Request(
            [source.randrange(1, 300) for _ in range(source.randint(3, 60))],
            params,
            speculation="auto" if drafts else "off",
        )
        for params in (GREEDY, SAMPLED)
        for drafts in (False, True)
    ]
    requests = [replace(each, ids=requests[index // 2 * 2].ids) for index, each in enumerate(requests)]
    for make in (lambda backend: eager(backend.info, chance(300)), always_suffix):
        with Engine(lambda: MLXBackend.load(tiny, context=512), tokenizer, make) as engine:
            alone = [list(engine.submit(request)) for request in requests]
            streams = [engine.submit(request) for request in requests]
            together = [ids_of(list(stream)) for stream in streams]
        said = [ids_of(events) for events in alone]
        assert said == together
        assert said[0] == said[1]
        assert said[2] == said[3]
        drafted = [_finished(events).usage.drafted for events in alone]
        assert drafted[0] == drafted[2] == 0 < drafted[1]


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def real(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def prompts(tokenizer: Tokenizer) -> Iterator[list[int]]:
    words = ("river", "stone", "market", "lantern", "garden", "winter", "letter", "engine", "harbour", "copper")
    for seed in range(3):
        source = random.Random(seed)
        lines = "\n".join(f"{number}. the {source.choice(words)} and the {source.choice(words)}" for number in range(8))
        yield tokenizer.encode(f"Copy this list:\n{lines}\n\nCopy:\n{lines}\n\nCopy:\n", add_bos=tokenizer.add_bos)
    yield tokenizer.encode("Once upon a time there was", add_bos=tokenizer.add_bos)


@needs_invariance
@pytest.mark.real_model
def test_greedy_text_is_the_same_alone_and_in_a_batch(real: Path) -> None:
    """Some of the 200 prompts that ``identity`` plays in full."""
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}")
    numbers = random.Random(seed).sample(range(PROMPTS), TOGETHER)
    open_backend = lambda: MLXBackend.load(real, context=1024)  # noqa: E731
    found = compare(open_backend, _tokenizer(real), always_suffix, numbers, tokens=64)
    assert found.different == []
    assert found.drafted > 0


@needs_invariance
@pytest.mark.real_model
def test_greedy_text_is_the_same_over_sealed_pages(smollm2_path: Path) -> None:
    """In one of the formats of keys and values; ``identity`` plays them all."""
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}")
    source = random.Random(seed)
    kv = source.choice(["k8v8", "k8v4", "k6v4", "k5v4", "k4v4", "k4v3", "k3v3", "q8_0"])
    found = compare(
        lambda: MLXBackend.load(smollm2_path, context=4096, kv=kv),
        _tokenizer(smollm2_path),
        always_suffix,
        source.sample(range(PROMPTS), 2),
        tokens=48,
        prompt=long_prompt,
    )
    assert found.different == [], kv
    assert found.drafted > 0


@needs_invariance
@pytest.mark.real_model
def test_real_models_say_the_same_on_the_native_path(real: Path) -> None:
    tokenizer = _tokenizer(real)
    with Engine(lambda: MLXBackend.load(real, context=1024), tokenizer, always_suffix) as engine:
        accepted = 0
        for ids in prompts(tokenizer):
            for params in (GREEDY, SAMPLED):
                plain, drafted = _both(engine, ids, params)
                assert ids_of(plain) == ids_of(drafted)
                accepted += _finished(drafted).usage.accepted
        assert accepted > 50


@pytest.mark.real_model
def test_on_llama_cpp_a_first_difference_is_a_near_tie(smollm2_path: Path) -> None:
    tokenizer = _tokenizer(smollm2_path)
    params = replace(GREEDY, max_tokens=32)
    with Engine(lambda: LlamaCppBackend.load(smollm2_path, 512, threads=1), tokenizer, always_suffix) as engine:
        ids = next(prompts(tokenizer))
        plain, drafted = _both(engine, ids, params)
        assert _finished(drafted).usage.accepted > 10
        pairs = list(zip(ids_of(plain), ids_of(drafted), strict=True))
        place = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if place is not None:
            asked = Request(
                [*ids, *ids_of(plain)[:place]], replace(params, max_tokens=1, logprobs=2), speculation="off"
            )
            best, second = next(iter(engine.submit(asked))).logprobs[0].top  # type: ignore[union-attr]
            assert {best[0], second[0]} == set(pairs[place])
            assert best[2] - second[2] < NEAR_TIE


def _both(engine: Engine, ids: Sequence[int], params: SamplingParams) -> tuple[list[Any], list[Any]]:
    """The events without and with drafts."""
    plain, drafted = (list(engine.submit(Request(ids, params, speculation=drafts))) for drafts in ("off", "auto"))
    return plain, drafted


def _finished(events: Sequence[Any]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def _tokenizer(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)
