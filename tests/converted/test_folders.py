"""Folders of converted weights: the whole way to an answer, and folders that are not what they seem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bench.checkpoint import write_checkpoint
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.errors import EdgeInferError
from edgeinfer.formats.gguf import open_gguf
from tests.converted.writing import LLAMA, matrices, others, store, write_folder, write_safetensors, write_tokenizer
from tests.models.test_logits import mean_kl, our_logits, some_tokens
from tests.tiny import tiny_gguf

MIXTURE = {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}  # fmt: skip
HERE = "model.layers.0.mlp.up_proj.weight"


def plain(folder: Path, **config: Any) -> Path:
    random = np.random.default_rng(1)
    weights = {
        f"{name}.weight": store("F32", random.standard_normal(shape) * 0.1) for name, shape in matrices().items()
    }
    return write_folder(folder, others(random) | weights, LLAMA | config)


def sharded(folder: Path) -> Path:
    """The same in two files, with their index."""
    plain(folder)
    file = Checkpoint(folder)
    names = sorted(file._folder.tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for shard, held in shards.items():
        kinds = {name: file._folder.info(name).dtype for name in held}
        write_safetensors(folder / shard, {name: store(kinds[name], file._folder.read(name)) for name in held})
    file.close()
    (folder / "model.safetensors").unlink()
    places = {name: shard for shard, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_folder_computes_what_its_gguf_does(tmp_path: Path, architecture: str) -> None:
    """``bench`` writes a GGUF file's weights as a checkpoint; every tensor comes back, and the logits with them."""
    path = tiny_gguf(tmp_path / "m.gguf", architecture)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_checkpoint(path, folder)
    write_tokenizer(folder)
    with open_gguf(path) as file, Checkpoint(folder) as found:
        assert found.tensors.keys() == file.tensors.keys()
        for name in file.tensors:  # a norm of Gemma loses the 1 and gets it back
            wanted = file.blocks(name).view(np.float32)
            np.testing.assert_allclose(found.blocks(name).view(np.float32), wanted, rtol=0, atol=2e-7)
    tokens = some_tokens(80)
    assert mean_kl(our_logits(folder, tokens), our_logits(path, tokens)) < 1e-6


def test_shards_are_one_model(tmp_path: Path) -> None:
    tokens = some_tokens(40)
    whole, parts = plain(tmp_path / "whole"), sharded(tmp_path / "parts")
    np.testing.assert_array_equal(our_logits(whole, tokens), our_logits(parts, tokens))


def test_a_folder_answers_a_chat(tmp_path: Path) -> None:
    with edgeinfer.load(plain(tmp_path / "model")) as llm:
        assert llm.choice.name == "mlx"
        reply = llm.chat([{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0)
        assert reply.usage.completion <= 4
        assert llm.tokenizer.decode(llm.tokenize("Hello there, 2026!")) == "Hello there, 2026!"


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def elsewhere(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"][HERE] = name
        path.write_text(json.dumps(index))

    return change


def foreign_shard(folder: Path) -> None:
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"other.weight": store("F32", np.zeros(3))})


def only(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")

    return change


def strange_tensor(folder: Path) -> None:
    random = np.random.default_rng(1)
    weights = {f"{name}.weight": store("F32", np.zeros(shape)) for name, shape in matrices().items()}
    extra = {"model.layers.0.self_attn.rotor.weight": store("F32", np.zeros(3))}
    write_safetensors(folder / "model.safetensors", others(random) | weights | extra)


INSIDE = "expected a .safetensors file in the same folder"
BAD: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any], str]] = {
    "a shard outside the folder": (sharded, elsewhere("../model.safetensors"), INSIDE),
    "an absolute shard": (sharded, elsewhere("/etc/passwd.safetensors"), INSIDE),
    "a shard with a backslash": (sharded, elsewhere("..\\m.safetensors"), INSIDE),
    "a shard missing": (sharded, elsewhere("model-00003-of-00002.safetensors"), "of 3 shards 1 are missing"),
    "a shard of another model": (sharded, foreign_shard, "it is a shard of another model"),
    "an index that says otherwise": (sharded, elsewhere("model-00002-of-00002.safetensors"), "of another model"),
    "an index without a map": (sharded, lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map"),
    "other sizes": (plain, edit("config.json", hidden_size=256), "token_embd.weight has shape [320, 128]"),
    "other layers": (plain, edit("config.json", num_hidden_layers=3), "blk.2"),
    "fewer layers": (plain, edit("config.json", num_hidden_layers=1), "tensor blk.1"),
    "another vocabulary": (plain, edit("config.json", vocab_size=999), "llama.vocab_size"),
    "layers that are no number": (plain, edit("config.json", num_hidden_layers="2"), "expected a whole number"),
    "an unknown family": (plain, edit("config.json", model_type="rwkv9"), "model_type: 'rwkv9'; supported: llama"),
    "no family": (plain, edit("config.json", model_type=None), "model_type: None; supported: llama"),
    "another activation": (plain, edit("config.json", hidden_act="relu"), "hidden_act: 'relu'; supported: silu"),
    "another rope": (plain, edit("config.json", rope_scaling={"rope_type": "spiral"}), "supported: default, linear"),
    "a window in a Llama": (plain, edit("config.json", sliding_window=64), "sliding_window: 64; supported: none"),
    "a tensor nobody knows": (plain, strange_tensor, "self_attn.rotor.weight is not one that llama has here"),
    "no config": (plain, lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "a config that is no JSON": (plain, lambda f: (f / "config.json").write_text("{"), "no JSON"),
    "no tokenizer": (plain, lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "an adapter": (plain, only("adapter_config.json", "adapter_model.safetensors"), "an adapter (LoRA), not a model"),
    "an adapter of MLX": (plain, only("config.json", "adapters.safetensors"), "an adapter (LoRA), not a model"),
    "pickles": (plain, only("config.json", "pytorch_model.bin"), "pickles are never opened"),
    "nothing": (plain, only("config.json"), "no .safetensors and no .gguf file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_model_is_refused_by_name(tmp_path: Path, case: str) -> None:
    make, spoil, message = BAD[case]
    folder = make(tmp_path / "model")
    spoil(folder)
    with pytest.raises(EdgeInferError) as caught:
        edgeinfer.load(folder).close()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_llama_cpp_is_said_to_want_gguf(tmp_path: Path) -> None:
    with pytest.raises(EdgeInferError, match="reads GGUF alone; make one with: edgeinfer convert"):
        edgeinfer.load(plain(tmp_path / "model"), backend="llama.cpp")


@pytest.mark.parametrize("stacked", [False, True], ids=["one by one", "stacked as MLX does"])
def test_experts_are_stacked(tmp_path: Path, stacked: bool) -> None:
    """Mixtures store each expert, or all of a layer in one tensor."""
    random, config = np.random.default_rng(4), LLAMA | MIXTURE
    weights = others(random, config)
    expected: dict[str, np.ndarray] = {}
    for name, shape in matrices(config).items():
        if ".mlp." not in name:
            weights[f"{name}.weight"] = store("F32", random.standard_normal(shape) * 0.1)
    for layer in range(2):
        base = f"model.layers.{layer}"
        for norm in ("q_norm", "k_norm"):
            weights[f"{base}.self_attn.{norm}.weight"] = store("F32", np.ones(32))
        weights[f"{base}.mlp.gate.weight"] = store("F32", random.standard_normal((4, 128)))
        for part, shape in (("gate_proj", (64, 128)), ("up_proj", (64, 128)), ("down_proj", (128, 64))):
            made = expected[f"blk.{layer}.ffn_{part[:-5]}_exps.weight"] = random.standard_normal((4, *shape)).astype(
                "f4"
            )
            if stacked:
                weights[f"{base}.mlp.switch_mlp.{part}.weight"] = store("F32", made)
            else:
                weights |= {f"{base}.mlp.experts.{e}.{part}.weight": store("F32", made[e]) for e in (3, 1, 0, 2)}
    folder = write_folder(tmp_path / "model", weights, config)
    with Checkpoint(folder) as file:
        for name, made in expected.items():
            np.testing.assert_array_equal(weights_of(file, name), made)
    assert np.isfinite(our_logits(folder, some_tokens(20))).all()
