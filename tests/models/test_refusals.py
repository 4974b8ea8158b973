"""A model that would run wrongly is refused, with the setting or tensor and what was found there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import EdgeInferError, ModelError
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading.loader import load
from edgeinfer.loading.registry import architectures, unsupported
from edgeinfer.quant.codec import BY_GGML_ID, CODECS
from tests.architectures import FAMILIES, tiny
from tests.tiny import tiny_gguf

SETTINGS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("llama", {".expert_count": 8}, ["llama.expert_count", "8"]),
    ("llama", {".expert_used_count": 2}, ["llama.expert_used_count", "2"]),
    ("llama", {".rope.scaling.type": "longrope"}, ["llama.rope.scaling.type", "longrope", "yarn"]),
    ("llama", {".rope.dimension_count": 8}, ["llama.rope.dimension_count", "8", "16"]),
    ("llama", {".rope.scaling.type": "yarn", ".rope.scaling.yarn_beta_fast": 8.0}, ["yarn_beta_fast", "8.0", "32.0"]),
    ("llama", {".rope.scaling.type": "yarn", ".rope.scaling.yarn_log_multiplier": 0.1}, ["yarn_log_multiplier", "0.1"]),
    ("llama", {".rope.freq_base": 0.0}, ["llama.rope.freq_base", "0.0"]),
    ("llama", {".attention.scale": 0.5}, ["llama.attention.scale", "0.5"]),
    ("llama", {".attention.causal": False}, ["llama.attention.causal", "False"]),
    ("llama", {".attention.head_count_kv": 3}, ["llama.attention.head_count_kv", "3", "4 heads"]),
    ("llama", {".attention.head_count_kv": [2, 2]}, ["llama.attention.head_count_kv", "array"]),
    ("llama", {".attention.value_length": 8}, ["llama.attention.value_length", "8", "16"]),
    ("llama", {".attention.key_length": 15}, ["llama.attention.key_length", "15", "even"]),
    ("llama", {".attention.layer_norm_rms_epsilon": None}, ["layer_norm_rms_epsilon", "missing"]),
    ("llama", {".vocab_size": 7}, ["llama.vocab_size", "7", "320"]),
    ("llama", {".logit_scale": 2.0}, ["llama.logit_scale", "2.0"]),
    ("llama", {".final_logit_softcapping": 30.0}, ["llama.final_logit_softcapping", "30.0"]),
    ("qwen2", {".attention.sliding_window": 64}, ["qwen2.attention.sliding_window", "64"]),
    ("qwen3", {".expert_count": 4}, ["qwen3.expert_count", "4"]),
    ("gemma3", {".attention.sliding_window": 0}, ["gemma3.attention.sliding_window", "0"]),
    ("gemma3", {".attention.sliding_window": None}, ["gemma3.attention.sliding_window", "missing"]),
    ("gemma3", {"general.architecture": "mamba"}, ["mamba", "llama", "gemma3", "qwen2", "qwen3"]),
    ("gemma3", {"general.architecture": "../llama"}, ["../llama"]),
]
FAMILY_SETTINGS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("mistral3", {".expert_count": 8}, ["mistral3.expert_count", "8"]),
    ("mistral3", {".attention.temperature_length": 9}, ["temperature_length", "9", "512"]),
    ("qwen3moe", {".expert_count": None}, ["qwen3moe.expert_count", "missing"]),
    ("qwen3moe", {".expert_used_count": 9}, ["qwen3moe.expert_used_count", "9", "8"]),
    ("qwen3moe", {".expert_gating_func": 2}, ["qwen3moe.expert_gating_func", "2"]),
    ("qwen3moe", {".expert_weights_norm": False}, ["qwen3moe.expert_weights_norm", "False"]),
    ("qwen3moe", {".expert_feed_forward_length": 64}, ["ffn_gate_exps.weight", "[8, 32, 64]", "[8, 64, 64]"]),
    ("glm4", {".rope.dimension_count": 32}, ["glm4.rope.dimension_count", "32", "16"]),
    ("glm4", {".rope.dimension_sections": [2, 2, 2, 2]}, ["glm4.rope.dimension_sections"]),
    ("glm4moe", {".expert_gating_func": 4}, ["glm4moe.expert_gating_func", "4"]),
    ("glm4moe", {".expert_group_count": 3}, ["glm4moe.expert_group_count", "3"]),
    ("glm4moe", {".nextn_predict_layers": 4}, ["glm4moe.nextn_predict_layers", "4 blocks"]),
    ("deepseek2", {".attention.key_length": 32}, ["deepseek2.attention.key_length", "32", "32 + 8"]),
    ("deepseek2", {".attention.key_length_mla": None}, ["deepseek2.attention.key_length_mla", "missing"]),
    ("deepseek2", {".attention.q_lora_rank": 7}, ["deepseek2.attention.q_lora_rank", "7", "48"]),
    ("deepseek2", {".rope.scaling.factor": 4.0}, ["deepseek2.rope.scaling.factor", "4.0", "1.0"]),
    ("gpt-oss", {".attention.sliding_window": None}, ["gpt-oss.attention.sliding_window", "missing"]),
    ("gpt-oss", {".attention.sliding_window_pattern": [True]}, ["sliding_window_pattern", "array of 1", "3 layers"]),
    ("gpt-oss", {".expert_gating_func": 1}, ["gpt-oss.expert_gating_func", "1", "3"]),
    ("phi3", {".attention.scale": 0.5}, ["phi3.attention.scale", "0.5"]),
    ("gemma2", {".final_logit_softcapping": 0.0}, ["gemma2.final_logit_softcapping", "0.0"]),
    ("granite", {".logit_scale": None}, ["granite.logit_scale", "missing"]),
    ("granite", {".expert_count": 4}, ["granite.expert_count", "4"]),
    ("granite", {".rope.scaling.finetuned": False}, ["granite.rope.scaling.finetuned", "False"]),
    ("smollm3", {".attention.scale": 0.5}, ["smollm3.attention.scale", "0.5"]),
    ("olmo2", {".attention.key_length": 8}, ["olmo2.attention.value_length", "16", "8"]),
    ("mamba2", {".attention.head_count": 4}, ["mamba2.attention.head_count", "4"]),
    ("mamba2", {".ssm.group_count": 3}, ["mamba2.ssm.inner_size", "3 groups"]),
    ("mamba2", {".ssm.dt_b_c_rms": True}, ["mamba2.ssm.dt_b_c_rms", "True"]),
    ("qwen3next", {".ssm.inner_size": 32}, ["qwen3next.ssm.inner_size", "32", "64"]),
    ("qwen3next", {".ssm.time_step_rank": 3}, ["qwen3next.ssm.time_step_rank", "3", "2 key heads"]),
    ("qwen3next", {".full_attention_interval": 2}, ["blk.1.attn_q.weight", "missing"]),
    (
        "gemma4",
        {".attention.sliding_window_pattern": [True] * 5},
        ["sliding_window_pattern", "array of 5"],
    ),
    ("gemma4", {".attention.head_count_kv": [2, 1]}, ["gemma4.attention.head_count_kv", "array of 2", "6 layers"]),
    ("gemma4", {".attention.head_count_kv": [3] * 6}, ["gemma4.attention.head_count_kv", "3", "4 heads"]),
    ("gemma4", {".attention.shared_kv_layers": 3}, ["gemma4.attention.shared_kv_layers", "3"]),
    ("gemma4", {".rope.scaling.type": "yarn"}, ["gemma4.rope.scaling.type", "yarn"]),
    ("glm4moe", {".nextn_predict_layers": None}, ["blk.3.nextn", "glm4moe"]),
]
TENSORS: list[tuple[dict[str, np.ndarray | None], list[str]]] = [
    ({"blk.1.ffn_up.weight": None}, ["blk.1.ffn_up.weight", "missing", "[128, 64]"]),
    ({"blk.0.attn_k.weight": np.zeros((64, 64))}, ["blk.0.attn_k.weight", "[64, 64]", "[32, 64]"]),
    ({"output_norm.weight": np.ones(32)}, ["output_norm.weight", "[32]", "[64]"]),
    ({"blk.0.attn_q.bias": np.zeros(64)}, ["blk.0.attn_q.bias", "llama"]),
    ({"blk.7.attn_norm.weight": np.ones(64)}, ["blk.7.attn_norm.weight"]),
    ({"token_embd.weight": None}, ["token_embd.weight", "missing"]),
    ({"rope_freqs.weight": np.ones(4)}, ["rope_freqs.weight", "[4]", "[8]"]),
]


def check_refused(path: Path, expected: list[str]) -> None:
    """Before any weight is read, and in the same words whether it is asked about or loaded."""
    with open_gguf(path) as file:
        reason = unsupported(file)
    assert reason is not None
    assert all(part in reason for part in expected), reason
    assert "\n" not in reason
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(caught.value) == reason
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("architecture", "metadata", "expected"), SETTINGS, ids=lambda value: str(value)[:60])
def test_settings(tmp_path: Path, architecture: str, metadata: dict[str, Any], expected: list[str]) -> None:
    check_refused(tiny_gguf(tmp_path / "m.gguf", architecture, metadata=metadata), expected)


@pytest.mark.parametrize(("architecture", "keys", "expected"), FAMILY_SETTINGS, ids=lambda value: str(value)[:60])
def test_settings_of_families(tmp_path: Path, architecture: str, keys: dict[str, Any], expected: list[str]) -> None:
    check_refused(tiny(tmp_path / "m.gguf", architecture, keys), expected)


@pytest.mark.parametrize(("tensors", "expected"), TENSORS, ids=lambda value: str(next(iter(value)))[:60])
def test_tensors(tmp_path: Path, tensors: dict[str, np.ndarray | None], expected: list[str]) -> None:
    check_refused(tiny_gguf(tmp_path / "m.gguf", tensors=tensors), expected)


def test_a_codec_without_a_decoder_says_who_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = CODECS["iq4_xs"]
    monkeypatch.setitem(BY_GGML_ID, codec.ggml_id, replace(codec, family=""))
    path = tiny_gguf(tmp_path / "m.gguf", codec={"ffn_down": "iq4_xs"}, hidden=256, feed_forward=256)
    check_refused(path, ["blk.0.ffn_down.weight", "iq4_xs", "llama.cpp has one"])


def test_a_tokenizer_of_another_size(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": np.zeros((300, 64))})
    with pytest.raises(EdgeInferError, match=r"names 320 tokens; token_embd.weight has 300 rows"):
        load(path)


def test_the_architectures_are_the_files_of_models() -> None:
    compared = {"gemma3", "llama", "qwen2", "qwen3", *(name.split()[0] for name in FAMILIES)}
    assert architectures() == sorted({*compared, "nemotron-labs-diffusion"})  # llama.cpp has no such one


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_what_can_run_is_not_refused(tmp_path: Path, architecture: str) -> None:
    with open_gguf(tiny_gguf(tmp_path / "m.gguf", architecture)) as file:
        assert unsupported(file) is None
