"""The model's own head for further tokens: found by its tensors, following the prompt, and never changing the text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import edgeinfer
from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.kv import LayerKV
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.generation.sampler import Guesser, Sampler
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.drafter import Text
from edgeinfer.speculation.mtp import Memories, MTPDrafter
from edgeinfer.types import SamplingParams
from tests.architectures import FAMILIES
from tests.converted.writing import LLAMA, matrices, others, store, write_folder
from tests.generation.fakes import FakeTokenizer, ids_of
from tests.makers import HIDDEN, Maker
from tests.speculation.drafters import Eager, only
from tests.tiny import CONTROL_TOKENS, MERGES, tiny_gguf

VOCAB = 256 + len(MERGES) + len(CONTROL_TOKENS)
LAYERS = {"qwen3": 2, "deepseek2": 3, "glm4moe": 3}
TOKENIZER: Any = FakeTokenizer([b"<end>", *(b"%d " % index for index in range(1, 400))])


def nextn(make: Maker) -> dict[str, np.ndarray]:
    return {
        "eh_proj.weight": make.matrix(HIDDEN, 2 * HIDDEN),
        "enorm.weight": make.norm(HIDDEN),
        "hnorm.weight": make.norm(HIDDEN),
        "shared_head_norm.weight": make.norm(HIDDEN),
    }


def with_head(path: Path, architecture: str, seed: int = 0, **more: Any) -> Path:
    """A tiny model of ``LAYERS`` layers with one block past the last one."""
    make, family, layers = Maker(seed + 1), FAMILIES.get(architecture), LAYERS[architecture]
    tensors: dict[str, Any] = {}
    for layer in range(layers + 1):
        block = family.block(make, layer) if family else {}
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    tensors |= {f"blk.{layers}.nextn.{name}": tensor for name, tensor in nextn(make).items()}
    keys = dict(family.keys) if family else {}
    keys[".nextn_predict_layers"] = 1
    return tiny_gguf(path, architecture, seed, layers=layers + 1, metadata=keys, tensors=tensors | more)


@pytest.fixture(scope="module", params=LAYERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_head(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


@pytest.fixture
def backend(model: Path) -> Iterator[MLXBackend]:
    backend = MLXBackend.load(model)
    yield backend
    backend.close()


def always(backend: Any) -> Any:
    """Verifies whatever the head proposes."""
    confidence, memories = Learned(), Memories()
    return only(
        backend.info, lambda text: MTPDrafter(backend.head, text, confidence, memories), Eager, price=(0.1, 0.1)
    )


def test_a_head_is_found_by_its_tensors_and_not_by_the_setting(tmp_path: Path) -> None:
    absent = {f"blk.2.nextn.{name}": None for name in nextn(Maker(0))}
    with edgeinfer.load(with_head(tmp_path / "with.gguf", "qwen3")) as llm:
        assert "mtp" in llm.info.drafters
        plain = llm.generate("Once", max_tokens=8, temperature=0, ignore_eos=True, speculation="off")
    with edgeinfer.load(with_head(tmp_path / "without.gguf", "qwen3", **absent)) as llm:
        assert "mtp" not in llm.info.drafters
        assert llm.generate("Once", max_tokens=8, temperature=0, ignore_eos=True).ids == plain.ids


def test_the_head_is_the_formula(backend: MLXBackend, model: Path) -> None:
    """Against the same block run by hand: rms norms, the joined projection, and the block's own attention."""
    head = backend.head
    assert head is not None
    tokens, source = [5, 9, 40, 41, 7], np.random.default_rng(2)
    hidden = mx.array(source.normal(size=(5, HIDDEN)).astype(np.float32))
    whole = LayerKV()
    out = np.array(head.step(whole, 0, hidden, tokens, first=True))
    inner = head._head
    normed = _rms(np.array(hidden), inner.output_norm, inner.eps)
    embedded = np.stack([np.array(inner.embed_tokens.embed(mx.array([token])))[0] for token in tokens])
    joined = np.concatenate(
        [_rms(embedded, inner.enorm, inner.eps), _rms(normed, inner.hnorm, inner.eps)], axis=1
    ).astype(np.float32)
    weight = _read(model, f"blk.{inner.layer}.nextn.eh_proj.weight")
    again = head._head.eh_proj(mx.array(joined))
    assert np.array(again) == pytest.approx(joined @ weight.T, rel=0.05, abs=0.1)
    pieces, outs = LayerKV(), []
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        outs.append(np.array(head.step(pieces, start, hidden[start:stop], tokens[start:stop], first=True)))
    assert np.concatenate(outs) == pytest.approx(out, abs=2e-3)
    chained = np.array(head.step(LayerKV(), 0, mx.array(normed.astype(np.float32)), tokens, first=False))
    assert chained == pytest.approx(out, abs=2e-3)


def test_it_sees_the_whole_prompt_whenever_it_is_asked(backend: MLXBackend) -> None:
    """Filled late or step by step, past wrong guesses, the head's last state is that of one pass over the text."""
    source = random.Random(7)
    text = [source.randrange(1, 300) for _ in range(90)]
    state = backend.open(text)
    chooser = Guesser(Sampler(SamplingParams(temperature=0), backend.info.vocab_size), backend.info.vocab_size)
    head = backend.head
    assert head is not None
    drafter = MTPDrafter(head, Text(text[:40], chooser=chooser, trunk=lambda: state), Learned(), Memories())
    whole = state.watch()
    rows = []
    place = 0
    while place < len(text) - 1:
        count = source.choice((1, 1, 3, 20) if place >= 40 else (7, 13))
        count = min(count, 39 - place if place < 39 else len(text) - 1 - place) or 1
        wrong = source.choice((0, 2)) if place >= 40 else 0
        backend.step([Chunk(state, [*text[place : place + count], *[3] * wrong])])
        state.accept(count)
        rows.append(whole.rows[-1])
        place += count
        if place > 40:
            drafter.observe(text[max(40, place - count + 1) : place + 1])
        if place >= 40 and source.random() < 0.5:
            drafter.propose(3)
    drafter.propose(1)
    expected = head.step(LayerKV(), 0, mx.concatenate(rows), text[1:], first=True)
    assert np.array(drafter._last) == pytest.approx(np.array(expected[-1:]), abs=5e-3)
    assert drafter._memory.length == len(text) - 1


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}], ids=str)
def test_the_text_is_the_same_alone_and_together(model: Path, params: dict[str, Any]) -> None:
    options = SamplingParams(max_tokens=40, ignore_eos=True, **params)
    source = random.Random(8)
    prompts = [[source.randrange(1, 300) for _ in range(size)] for size in (5, 60, 33)]
    with Engine(lambda: MLXBackend.load(model), TOKENIZER, always) as engine:
        plain = [ids_of(list(engine.submit(Request(ids, options, speculation="off")))) for ids in prompts]
        alone = [list(engine.submit(Request(ids, options))) for ids in prompts]
        together = [engine.submit(Request(ids, options)) for ids in prompts]
        assert [ids_of(list(stream)) for stream in together] == plain
    assert [ids_of(events) for events in alone] == plain
    assert all(events[-1].usage.drafted > 10 for events in alone)


def oracle(path: Path, blind: bool = False) -> Path:
    """A model that says f(token) after each token, whose head knows f as well; a blind one looks at the state alone,
    and so says again what is said already."""
    source = np.random.default_rng(4)
    order = source.permutation(VOCAB)
    embedding = source.normal(size=(VOCAB, HIDDEN)) / 8
    output = np.empty_like(embedding)
    output[order] = embedding
    zeros = {"attn_output.weight": (HIDDEN, 64), "ffn_down.weight": (HIDDEN, 128)}
    eye, nothing = np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))
    more: dict[str, Any] = {"token_embd.weight": embedding, "output.weight": output}
    more |= {f"blk.{layer}.{name}": np.zeros(shape) for layer in range(3) for name, shape in zeros.items()}
    more["blk.2.nextn.eh_proj.weight"] = np.concatenate([nothing, eye] if blind else [eye, nothing], axis=1)
    norms = ("blk.2.nextn.enorm", "blk.2.nextn.hnorm", "blk.2.nextn.shared_head_norm", "output_norm")
    more |= {f"{name}.weight": np.ones(HIDDEN) for name in norms}
    return with_head(path, "qwen3", **more)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_head_that_knows_is_believed_and_a_blind_one_is_not(tmp_path: Path, temperature: float) -> None:
    for blind in (False, True):
        path = oracle(tmp_path / f"{blind}.gguf", blind)
        with edgeinfer.load(path) as llm:
            options: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_tokens": 300, "ignore_eos": True}
            plain = llm.generate([5], speculation="off", **options)
            reply = llm.generate([5], speculation="mtp", **options)
        with Engine(lambda path=path: MLXBackend.load(path), TOKENIZER, always) as engine:
            params = SamplingParams(**options)
            eager = list(engine.submit(Request([5], params)))
        assert reply.ids == plain.ids == tuple(ids_of(eager))
        usage = eager[-1].usage  # type: ignore[union-attr]
        assert usage.accepted >= 0.9 * usage.drafted if not blind else usage.accepted <= 0.1 * usage.drafted
        if not blind:
            told = eager[-1].speculation  # type: ignore[union-attr]
            assert told.tokens / told.steps > 4


def test_a_text_that_goes_on_finds_what_the_head_knew_of_its_beginning() -> None:
    memories = Memories()
    from edgeinfer.speculation.mtp import Memory

    memories.keep(Memory(LayerKV(), start=0, length=9, tokens=list(range(10))))
    found = memories.find([*range(8), 50, 51], 8)
    assert found is not None
    assert (found.start, found.length) == (1, 7)
    assert memories.find([1, 2, 3, 4], 3) is None
    assert memories.find(list(range(9)), 1) is None


@pytest.mark.parametrize("style", ["mtp", "layer"])
def test_a_folder_names_its_head_as_qwen_or_as_deepseek_does(tmp_path: Path, style: str) -> None:
    config = {**LLAMA, "model_type": "qwen3", "num_nextn_predict_layers": 1}
    source = np.random.default_rng(9)
    more = {**config, "num_hidden_layers": 3}
    tensors = others(source, more) | {
        f"{name}.weight": store("F32", source.standard_normal(shape) * 0.1) for name, shape in matrices(more).items()
    }
    for layer in range(3):
        for norm in ("q_norm", "k_norm"):
            tensors[f"model.layers.{layer}.self_attn.{norm}.weight"] = store("F32", np.ones(32))
    names = {"mtp": ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
             "layer": ("eh_proj", "enorm", "hnorm", "shared_head.norm")}[style]  # fmt: skip
    place = {"mtp": "mtp", "layer": "model.layers.2"}[style]
    tensors[f"{place}.{names[0]}.weight"] = store("F32", source.standard_normal((128, 256)) * 0.1)
    tensors |= {f"{place}.{name}.weight": store("F32", np.ones(128)) for name in names[1:]}
    if style == "mtp":
        last = [name for name in tensors if name.startswith("model.layers.2.")]
        tensors |= {f"mtp.layers.0.{name.removeprefix('model.layers.2.')}": tensors.pop(name) for name in last}
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    with edgeinfer.load(write_folder(tmp_path / "folder", tensors, config)) as llm:
        assert "mtp" in llm.info.drafters
        plain = llm.generate("Once upon", speculation="off", **options)
        assert llm.generate("Once upon", speculation="mtp", **options).ids == plain.ids


def _rms(x: np.ndarray, weight: Any, eps: float) -> np.ndarray:
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps) * np.array(weight)


def _read(path: Path, name: str) -> np.ndarray:
    import gguf

    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == name)
    return np.array(tensor.data).reshape(HIDDEN, -1)
