"""Checkpoints of the larger families compute what the GGUF file of the same weights does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.converted.families import FAMILIES
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.gguf import open_gguf
from tests.architectures import tiny
from tests.converted.hf import PUBLISHED, write_published
from tests.converted.writing import store, write_safetensors
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


def test_every_family_is_tried() -> None:
    """Those of Llama's kind in test_folders; DeepSeek V2 is V3 with other values."""
    elsewhere = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "nemotron_labs_diffusion"}
    assert FAMILIES.keys() == PUBLISHED.keys() | elsewhere | {"deepseek_v2"}
