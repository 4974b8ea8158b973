"""Checkpoints of the larger families compute what the GGUF file of the same weights does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.gguf import GGUFFile, open_gguf
from tests.architectures import tiny
from tests.converted.hf import BASE, LLAMA, PUBLISHED, write_published
from tests.converted.hf import YARN as PUBLISHED_YARN
from tests.converted.test_schemes import words
from tests.converted.writing import Stored, store, write_folder, write_safetensors
from tests.makers import YARN
from tests.models.test_logits import mean_kl, our_logits, some_tokens

COUNT = 150
"""Past every window and past the original context of what is scaled."""


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single operations, which round nothing."""
    monkeypatch.setattr(ops, "fused", False)


def made(folder: Path, kind: str) -> tuple[Path, Path]:
    family = PUBLISHED[kind]
    path = tiny(folder / "m.gguf", family.gguf, family.keys)
    return path, write_published(path, folder / "model", kind)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_checkpoint_computes_what_its_gguf_does(tmp_path: Path, kind: str) -> None:
    path, folder = made(tmp_path, kind)
    with open_gguf(path) as file, Checkpoint(folder) as found:
        assert found.tensors.keys() == file.tensors.keys()
        for name in file.tensors:
            np.testing.assert_allclose(weights_of(found, name), weights_of(file, name), atol=2e-7, err_msg=name)
    tokens = some_tokens(COUNT)
    assert mean_kl(our_logits(folder, tokens), our_logits(path, tokens)) < 1e-8


def gpt_oss(folder: Path, stacked: bool) -> tuple[Path, Path]:
    """With experts in MXFP4: in OpenAI's blocks, or as MLX has them."""
    codec = {f"ffn_{name}_exps.weight": "mxfp4" for name in ("gate", "up", "down")}
    path = tiny(folder / "m.gguf", "gpt-oss", YARN, codec=codec)
    names = LLAMA | {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"}
    tensors: dict[str, Stored] = {}
    with open_gguf(path) as file:
        for name in file.tensors:
            module, _, end = name.rpartition(".")
            if not module.startswith("blk."):
                top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[module]
                tensors[f"{top}.{end}"] = store("F32", weights_of(file, name))
                continue
            _, layer, part = module.split(".")
            if part == "attn_sinks":
                tensors[f"model.layers.{layer}.self_attn.sinks"] = store("F32", weights_of(file, name))
            elif not part.endswith("_exps"):
                tensors[f"model.layers.{layer}.{names[part]}.{end}"] = store("F32", weights_of(file, name))
        for layer in range(3):
            tensors |= (mlx_experts if stacked else packed_experts)(file, layer)
    quantization = {"group_size": 32, "bits": 4, "mode": "mxfp4"} if stacked else {"quant_method": "mxfp4"}
    config = BASE | {
        "model_type": "gpt_oss", "num_hidden_layers": 3, "num_local_experts": 8, "num_experts_per_tok": 3,
        "intermediate_size": 32, "sliding_window": 32, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "rope_scaling": PUBLISHED_YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "quantization" if stacked else "quantization_config": quantization,
    }  # fmt: skip
    return path, write_folder(folder / "model", tensors, config)


def taken_apart(file: GGUFFile, name: str) -> tuple[np.ndarray, np.ndarray]:
    """ggml's blocks: an exponent, then weights i and i + 16 in a byte -> codes (E, rows, columns), exponents."""
    info = file.tensors[name]
    blocks = file.blocks(name).reshape(*info.shape[:2], -1, 17)
    codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
    return codes.reshape(info.shape), blocks[..., 0]


def packed_experts(file: GGUFFile, layer: int) -> dict[str, Stored]:
    """Rows of gate and up in turn, weights 2 i and 2 i + 1 in a byte."""
    made: dict[str, Stored] = {}
    for stored, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        found = [taken_apart(file, f"blk.{layer}.ffn_{part}_exps.weight") for part in parts]
        biases = [weights_of(file, f"blk.{layer}.ffn_{part}_exps.bias") for part in parts]
        codes, exponents, bias = (
            np.stack(each, axis=2).reshape(8, -1, *each[0].shape[2:])
            for each in ([codes for codes, _ in found], [exponents for _, exponents in found], biases)
        )
        blocks = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(*exponents.shape, 16)
        base = f"model.layers.{layer}.mlp.experts.{stored}"
        made |= {f"{base}_blocks": store("U8", blocks), f"{base}_scales": store("U8", exponents),
                 f"{base}_bias": store("F32", bias)}  # fmt: skip
    return made


def mlx_experts(file: GGUFFile, layer: int) -> dict[str, Stored]:
    made: dict[str, Stored] = {}
    for part in ("gate", "up", "down"):
        codes, exponents = taken_apart(file, f"blk.{layer}.ffn_{part}_exps.weight")
        base = f"model.layers.{layer}.mlp.experts.{part}_proj"
        made |= {f"{base}.weight": store("U32", words(codes, 4)), f"{base}.scales": store("U8", exponents),
                 f"{base}.bias": store("F32", weights_of(file, f"blk.{layer}.ffn_{part}_exps.bias"))}  # fmt: skip
    return made


@pytest.mark.parametrize("stacked", [False, True], ids=["blocks of OpenAI", "as MLX splits them"])
def test_gpt_oss_keeps_its_blocks(tmp_path: Path, stacked: bool) -> None:
    path, folder = gpt_oss(tmp_path, stacked)
    with open_gguf(path) as file, Checkpoint(folder) as found:
        assert found.tensors.keys() == file.tensors.keys()
        for name, info in file.tensors.items():
            assert found.tensors[name].codec == info.codec
            np.testing.assert_array_equal(found.blocks(name), file.blocks(name), name)
    tokens = some_tokens(COUNT)
    assert mean_kl(our_logits(folder, tokens), our_logits(path, tokens)) < 1e-8


def test_pictures_are_left_out(tmp_path: Path) -> None:
    """Mistral 3 with its eyes: text runs, what sees is not read."""
    path, folder = made(tmp_path, "ministral3")
    with Checkpoint(folder) as file:
        tensors = {name: store("F32", file._folder.read(name)) for name in file._folder.tensors}
    for name in ("vision_tower.patch_conv.weight", "multi_modal_projector.linear_1.weight"):
        tensors[name] = store("F32", np.zeros((2, 2)))
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": config}))
    tokens = some_tokens(20)
    assert mean_kl(our_logits(folder, tokens), our_logits(path, tokens)) < 1e-8


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "factors of another head": ("phi3", {"partial_rotary_factor": 1.0}, "long_factor"),
    "no original context": ("phi3", {"original_max_position_embeddings": None}, "original_max_position_embeddings"),
    "another gate": ("deepseek_v3", {"scoring_func": "tanh"}, "scoring_func: 'tanh'; supported: softmax, sigmoid"),
    "another choice": ("deepseek_v3", {"topk_method": "group_limited_greedy"}, "topk_method"),
    "no latent": ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
    "experts in some layers": ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq: 2; supported: 1"),
    "windows in other layers": ("gemma2", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    "another scale": ("gemma2", {"query_pre_attn_scalar": 144}, "query_pre_attn_scalar: 144"),
    "other layers without positions": ("smollm3", {"no_rope_layers": [0, 1, 1, 1, 1]}, "no_rope_layers"),
    "windows for some layers": ("olmo3", {"layer_types": ["full_attention"]}, "layer_types"),
    "positions in part of a head": ("granite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_setting_that_would_change_the_model_is_refused_by_name(tmp_path: Path, case: str) -> None:
    kind, changes, message = BAD[case]
    _, folder = made(tmp_path, kind)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UnsupportedModel) as caught:
        Checkpoint(folder).close()
    assert message in str(caught.value)
