"""Nemotron-Labs-Diffusion from its published layout, with tiny random weights: blocks, their adapter, and drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import edgeinfer
from edgeinfer import ops
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.ops.composed import ComposedHeads
from edgeinfer.ops.parts import HeadsParts, MapParts, Span
from edgeinfer.ops.rotary import Rotary
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.diffusion import DiffusionDrafter
from edgeinfer.types import SamplingParams
from tests.converted.writing import LLAMA, matrices, others, store, write_folder, write_safetensors
from tests.generation.fakes import FakeTokenizer, ids_of
from tests.speculation.drafters import Eager, only

TOKENIZER: Any = FakeTokenizer([b"<end>", *(b"%d " % index for index in range(1, 400))])
MASK, BLOCK, RANK = 100, 8, 4
CONFIG = {
    **LLAMA,
    "model_type": "nemotron_labs_diffusion",
    "tie_word_embeddings": False,
    "mask_token_id": MASK,
    "block_size": BLOCK,
    "dlm_paradigm": "bidirectional",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
del CONFIG["rope_theta"]


def published(folder: Path, adapter: bool = True) -> Path:
    """The tensors under the names of the checkpoint, the adapter in its own folder."""
    source = np.random.default_rng(3)
    tensors = others(source) | {
        f"{name}.weight": store("F32", source.standard_normal(shape) * 0.1) for name, shape in matrices().items()
    }
    named = {f"encoder.{name.removeprefix('model.')}": each for name, each in tensors.items()}
    named["diffusion_head.weight"] = store("F32", source.standard_normal((320, 128)) * 0.3)
    write_folder(folder, named, CONFIG)
    if adapter:
        place = folder / "linear_spec_lora"
        place.mkdir()
        (place / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": 4 * RANK}))
        names = {"A": (RANK, 128), "B": (128, RANK)}
        write_safetensors(
            place / "adapter_model.safetensors",
            {
                f"base_model.model.encoder.layers.{i}.self_attn.o_proj.lora_{half}.weight": store(
                    "F32", source.standard_normal(shape) * 0.2
                )
                for i in range(2)
                for half, shape in names.items()
            },
        )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("models") / "nemotron")


@pytest.fixture
def backend(folder: Path) -> Iterator[MLXBackend]:
    backend = MLXBackend.load(folder)
    yield backend
    backend.close()


def test_the_published_layout_is_read(folder: Path, tmp_path: Path) -> None:
    with edgeinfer.load(folder) as llm:
        assert "diffusion" in llm.info.drafters
        assert llm.info.architecture == "nemotron-labs-diffusion"
        plain = llm.generate("Once upon", max_tokens=12, temperature=0, ignore_eos=True, speculation="off")
    with edgeinfer.load(published(tmp_path / "bare", adapter=False)) as llm:
        assert llm.generate("Once upon", max_tokens=12, temperature=0, ignore_eos=True).ids == plain.ids
    (tmp_path / "bare" / "linear_spec_lora").mkdir()
    with pytest.raises(edgeinfer.EdgeInferError):
        edgeinfer.load(tmp_path / "bare")


def test_rows_of_a_block_see_each_other_and_leave_no_trace(backend: MLXBackend) -> None:
    state = backend.open([])
    prompt = [5, 9, 200, 31, 7, 8]
    backend.step([Chunk(state, prompt)])
    state.accept(len(prompt))
    first = np.array(backend.filled(state, [4, MASK, MASK, MASK]))
    other = np.array(backend.filled(state, [4, MASK, MASK, 17]))
    assert first.shape == (4, backend.info.vocab_size)
    assert np.abs(first[0] - other[0]).max() > 1e-3, "the first row sees the last one"
    again = np.array(backend.filled(state, [4, MASK, MASK, MASK]))
    assert again == pytest.approx(first, abs=1e-4)
    logits = np.array(backend.step([Chunk(state, [4])])[0])
    cold = backend.open([])
    assert np.array(backend.step([Chunk(cold, [*prompt, 4])])[0]) == pytest.approx(logits, abs=2e-2)


def test_the_adapter_is_on_for_drafts_alone(folder: Path, tmp_path: Path) -> None:
    tokens = [5, 9, 200, 31]
    made = []
    for path in (folder, published(tmp_path / "bare", adapter=False)):
        backend = MLXBackend.load(path)
        state = backend.open([])
        made.append(np.array(backend.filled(state, [*tokens, MASK])))
        made.append(np.array(backend.step([Chunk(state, tokens)])[0]))
        backend.close()
    assert np.abs(made[0] - made[2]).max() > 1e-2
    assert made[1] == pytest.approx(made[3], abs=1e-4)


@pytest.mark.skipif(not ops.fused, reason="there is no native path to compare")
def test_the_native_block_is_the_composed_one() -> None:
    source, heads, kv_heads, size, rows, start = np.random.default_rng(5), 4, 2, 32, 5, 7
    rotary = Rotary(np.float64(10000.0) ** (-np.arange(0, size, 2) / size), interleaved=True)
    parts = HeadsParts(heads, kv_heads, size, rotary, size**-0.5)
    from edgeinfer.ops.weights import PackedWeight
    from edgeinfer.quant.codec import CODECS

    weight = (source.standard_normal((64, heads * size)) * 0.1).astype(np.float16)
    packed = PackedWeight(CODECS["f16"], weight.view(np.uint8).reshape(64, -1), weight.shape)
    results = []
    for native in (True, False):
        output = ops.linear_map(MapParts([ops.prepare(packed)]))
        kind = ops.heads(parts, output) if native else ComposedHeads(parts, output, ops.here)
        numbers = np.random.default_rng(6)
        width = (heads + 2 * kv_heads) * size
        before = mx.array(numbers.standard_normal((start, width)).astype(np.float32))
        block = mx.array(numbers.standard_normal((rows, width)).astype(np.float32))
        _, caches = kind(before, [Span(0, start, 0)], [()], mx.zeros((start, 64)))
        out, _ = kind.block(block, start, caches[0], mx.zeros((rows, 64)), output)
        results.append(np.array(out))
    assert results[0] == pytest.approx(results[1], abs=0.05)
    assert np.corrcoef(results[0].ravel(), results[1].ravel())[0, 1] > 0.999


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}], ids=str)
def test_drafts_of_blocks_change_no_text(folder: Path, params: dict[str, Any]) -> None:
    options = SamplingParams(max_tokens=40, ignore_eos=True, **params)
    confidence = Learned()

    def always(backend: Any) -> Any:
        return only(backend.info, lambda text: DiffusionDrafter(backend, text, confidence), Eager, price=(1.0, 0.0))

    prompts = [[5, 9, 40], [7] * 50, list(range(30, 63))]
    with Engine(lambda: MLXBackend.load(folder), TOKENIZER, always) as engine:
        plain = [ids_of(list(engine.submit(Request(ids, options, speculation="off")))) for ids in prompts]
        alone: list[Any] = [list(engine.submit(Request(ids, options))) for ids in prompts]
        together = [engine.submit(Request(ids, options)) for ids in prompts]
        assert [ids_of(list(stream)) for stream in together] == plain
    assert [ids_of(events) for events in alone] == plain
    assert all(events[-1].usage.drafted > 10 for events in alone)
