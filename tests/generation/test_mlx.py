"""The pipeline on MLX itself, with a tiny random model: reading one step behind changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.types import SamplingParams
from tests.generation.fakes import FakeTokenizer, ids_of
from tests.tiny import tiny_gguf

PROMPT = [5, 9, 33, 120, 7, 7, 31]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(seed=11, max_tokens=24, temperature=1.2, ignore_eos=True),
    SamplingParams(seed=12, max_tokens=24, top_k=0, typical_p=0.9, xtc_probability=0.5, logit_bias={3: 2.0}),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    tokenizer: Any = FakeTokenizer([b"<end>", *(b"%d " % index for index in range(1, 400))])
    with Engine(lambda: MLXBackend.load(path, context=256), tokenizer) as engine:
        yield engine


@pytest.mark.parametrize("params", PARAMS)
def test_pipelined_and_host_choose_the_same_tokens(engine: Engine, params: SamplingParams) -> None:
    pipelined = list(engine.submit(Request(PROMPT, params)))
    on_host = list(engine.submit(Request(PROMPT, replace(params, logprobs=0))))
    assert ids_of(pipelined) == ids_of(on_host)
    assert len(ids_of(pipelined)) == pipelined[-1].usage.completion == 24 or pipelined[-1].finish_reason == "stop"


def test_a_cancelled_pipeline_leaves_a_clean_prefix(engine: Engine) -> None:
    params = replace(PARAMS[0], max_tokens=20)
    whole = ids_of(list(engine.submit(Request(PROMPT, params))))
    for count in (1, 3, 6):
        stream = engine.submit(Request(PROMPT, params))
        for _ in range(count):
            next(stream)
        stream.close()
        again = list(engine.submit(Request(PROMPT + whole[:8], replace(params, max_tokens=12))))
        assert ids_of(again) == whole[8:]
        assert again[-1].usage.cached >= len(PROMPT)


def test_two_requests_in_one_batch_on_the_device(engine: Engine) -> None:
    alone = [ids_of(list(engine.submit(Request(PROMPT, params)))) for params in PARAMS]
    streams = [engine.submit(Request(PROMPT, params)) for params in PARAMS]
    assert [ids_of(list(stream)) for stream in streams] == alone
