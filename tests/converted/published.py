"""Tiny models of every published family: settings, and weights that follow from a tensor's name alone.

What is stored in ``golden/`` was made from these by transformers: see ``golden/make.py``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

COUNT = 96
"""Tokens: past windows of 32 and past original contexts of 64."""
PLACES = (9, 70, 95)
"""Whose logits are kept."""
BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS = {"head_dim": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": np.linspace(1, 9, 8).round(3).tolist(),
        "short_factor": np.linspace(1, 1.5, 8).round(3).tolist()}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
          "routed_scaling_factor": 2.5}  # fmt: skip
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "n_shared_experts": 2,
          "num_key_value_heads": 4}  # fmt: skip
TURNS = ["sliding_attention", "full_attention"]
GEMMA = {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",
         "tie_word_embeddings": True}  # fmt: skip
GEMMA4 = {
    "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "sliding_window": 32, "tie_word_embeddings": True, "final_logit_softcapping": 3.0,
}  # fmt: skip
MODELS: Mapping[str, dict[str, Any]] = {
    "llama": HEADS | {"rope_parameters": LLAMA3},
    "mistral": HEADS | {"sliding_window": 32},
    "qwen2": {},
    "qwen3": HEADS,
    "qwen3_moe": HEADS | SPARSE | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "gemma2": GEMMA | {"num_hidden_layers": 4, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                       "layer_types": TURNS * 2},
    "gemma3_text": GEMMA | {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    "gemma4_text": GEMMA4 | {
        "num_hidden_layers": 6, "layer_types": TURNS * 3, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 320, "use_double_wide_mlp": True},
    "gemma4_text of experts": GEMMA4 | {
        "num_hidden_layers": 4, "layer_types": TURNS * 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32},
    "ministral3": HEADS | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0,
                                                      "llama_4_scaling_beta": 0.1}},
    "phi3": {"rope_parameters": LONG, "original_max_position_embeddings": 64, "sliding_window": 512},
    "glm4": HEADS | {"rope_parameters": PARTIAL},
    "glm4_moe": HEADS | ROUTED | {"rope_parameters": PARTIAL, "n_shared_experts": 1, "use_qk_norm": True,
                                  "attention_bias": True, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
    "deepseek_v2": ROUTED | LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
                                      "norm_topk_prob": False},
    "deepseek_v3": ROUTED | LATENT | {
        "q_lora_rank": 48, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "granite": {"rope_parameters": PLAIN, "logits_scaling": 1.7,
                "residual_multiplier": 0.4, "embedding_multiplier": 3.0, "attention_multiplier": 0.1},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1], "use_sliding_window": False},
    "olmo2": {},
    "olmo3": {"num_hidden_layers": 5, "sliding_window": 32,
              "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN},
              "layer_types": ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"]},
    "gpt_oss": HEADS | {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32, "sliding_window": 32,
        "layer_types": [*TURNS, "sliding_attention"], "rope_parameters": YARN | {"truncate": True}},
    "qwen3_next": HEADS | SPARSE | {
        "num_hidden_layers": 5, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 32,
        "rope_parameters": PARTIAL},
    "mamba2": {"state_size": 16, "num_heads": 8, "head_dim": 16, "expand": 2, "n_groups": 2, "conv_kernel": 4},
}  # fmt: skip
"""By ``model_type`` (a word behind it tells variants apart); settings beside BASE."""


def tokens() -> list[int]:
    return [int(each) for each in np.random.default_rng(7).integers(0, 320, COUNT)]


def weights(name: str, shape: Sequence[int]) -> np.ndarray:
    """Float32 numbers of a size that keeps activations near one."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    noise = random.standard_normal(shape)
    if len(shape) > 1:
        return np.asarray(noise * 1.5 / math.sqrt(shape[-1]), np.float32)
    return np.asarray((1 if "norm" in name or "scal" in name else 0) + 0.2 * noise, np.float32)
