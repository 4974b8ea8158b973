"""Tiny models of the larger families as their published checkpoints: a GGUF file's tensors under the other names.

Written from the published modelling code, by rules of their own, so that a table that names them wrongly is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.converted.checkpoint import weights_of
from edgeinfer.formats.gguf import open_gguf
from tests.converted.writing import store, write_folder
from tests.makers import EXPERTS, HEADS, HIDDEN, INNER, KV_HEADS, LATENT, NARROW, PLAIN, SIZE, TURNED, USED, VALUE

Arrays = dict[str, np.ndarray]
ATTENTION = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm"}  # fmt: skip
NETWORK = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
LLAMA = ATTENTION | NETWORK | {"ffn_norm": "post_attention_layernorm"}
SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
SANDWICH = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip
QK = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
BASE = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu",
    "vocab_size": 320,
}  # fmt: skip
ROUTING = {"n_routed_experts": EXPERTS, "num_experts_per_tok": USED, "moe_intermediate_size": 32,
           "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Published:
    """``gguf``: the family of ``tests.architectures`` and the keys that are added there."""

    gguf: str
    names: Mapping[str, str]
    config: Mapping[str, Any]
    keys: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    less: float = 0.0
    change: Callable[[Arrays], Arrays] = lambda tensors: tensors
    root: str = "model."


def unpaired(weights: np.ndarray) -> np.ndarray:
    """A head's even rows, then its odd ones."""
    heads = weights.reshape(-1, SIZE, weights.shape[-1])
    return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(weights.shape)


def joined(tensors: Arrays) -> Arrays:
    """DeepSeek keeps a head's two absorbed matrices as one that makes keys and values."""
    made = dict(tensors)
    for name in [name for name in tensors if name.endswith("attn_k_b.weight")]:
        place = name.removesuffix("attn_k_b.weight")
        keys, values = made.pop(name), made.pop(f"{place}attn_v_b.weight")
        both = [np.concatenate([keys[head].T, values[head]]) for head in range(HEADS)]
        made[f"{place}attn_kv_b.weight"] = np.concatenate(both)
    return made


def without_factors(tensors: Arrays) -> Arrays:
    return {name: each for name, each in tensors.items() if not name.startswith("rope_factors")}


GLM4 = LLAMA | {"ffn_up": "mlp.gate_up_proj", "post_attention_norm": "post_self_attn_layernorm",
                "post_ffw_norm": "post_mlp_layernorm"}  # fmt: skip
DEEPSEEK = LLAMA | SHARED | {
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj", "ffn_gate_inp": "mlp.gate", "exp_probs_b": "mlp.gate",
}  # fmt: skip
HEADS_OF_DEEPSEEK = {"kv_lora_rank": LATENT, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": TURNED, "v_head_dim": VALUE,
                     "n_shared_experts": 2, "head_dim": None, "num_key_value_heads": HEADS}  # fmt: skip
PAIRS = 3 * SIZE // 8
LONG = {"type": "longrope", "long_factor": np.linspace(1, 9, PAIRS).tolist(),
        "short_factor": np.linspace(1, 1.5, PAIRS).tolist()}  # fmt: skip
OLMO = ATTENTION | NETWORK | QK | {"post_attention_norm": "post_attention_layernorm",
                                   "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip
PUBLISHED: dict[str, Published] = {
    "ministral3": Published(
        "mistral3", LLAMA,
        {"rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                                 "llama_4_scaling_beta": 0.1}},
        {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64,
         ".rope.scaling.yarn_beta_fast": 16.0, ".rope.scaling.yarn_beta_slow": 2.0,
         ".rope.scaling.yarn_log_multiplier": 0.5, ".attention.temperature_scale": 0.1},
        paired=True, root="language_model.model.",
    ),
    "phi3": Published(
        "phi3", LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        {"rope_scaling": LONG, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.75,
         "sliding_window": 7},
        {".rope.scaling.type": None, ".rope.scaling.attn_factor": float(np.sqrt(1.5))},  # 1 + ln(512 / 64) / ln(64)
        change=without_factors,
    ),
    "glm4": Published("glm4", GLM4, {"partial_rotary_factor": 0.5}),
    "glm4_moe": Published(
        "glm4moe",
        ATTENTION | NETWORK | QK | SHARED | {"post_attention_norm": "post_attention_layernorm",
                                             "ffn_gate_inp": "mlp.gate", "exp_probs_b": "mlp.gate"},
        ROUTING | {"n_shared_experts": 1, "partial_rotary_factor": 0.5, "num_hidden_layers": 3, "use_qk_norm": True},
        {".expert_gating_func": 2},
    ),
    "deepseek_v3": Published(
        "deepseek2", DEEPSEEK,
        ROUTING | HEADS_OF_DEEPSEEK | {
            "q_lora_rank": NARROW, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1},
        },
        {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64,
         ".rope.scaling.yarn_log_multiplier": 0.1},
        change=joined,
    ),
    "granite": Published(
        "granite", LLAMA,
        {"logits_scaling": 1.7, "residual_multiplier": 0.4, "embedding_multiplier": 3.0, "attention_multiplier": 0.1},
        paired=True,
    ),
    "smollm3": Published("smollm3", LLAMA, {"no_rope_layers": [1, 1, 1, 0, 1]}, paired=True),
    "olmo2": Published("olmo2", OLMO, {}),
    "olmo3": Published(
        "olmo2", OLMO,
        {"rope_scaling": YARN | {"beta_fast": 32.0, "beta_slow": 1.0}, "sliding_window": 32,
         "layer_types": [f"{'full' if i == 3 else 'sliding'}_attention" for i in range(5)]},
        {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64,
         ".attention.sliding_window": 32, ".attention.sliding_window_pattern": [True, True, True, False, True]},
    ),
    "gemma2": Published(
        "gemma2", ATTENTION | NETWORK | SANDWICH,
        {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "sliding_window": 32,
         "query_pre_attn_scalar": SIZE, "hidden_act": "gelu_pytorch_tanh"},
        less=1.0,
    ),
}  # fmt: skip
NEXTN = {"nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm",
         "nextn.shared_head_norm": "shared_head.norm"}  # fmt: skip
TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}


def write_published(path: Path, folder: Path, kind: str) -> Path:
    """A GGUF file of the family as a folder of float32."""
    family = PUBLISHED[kind]
    with open_gguf(path) as file:
        arrays = family.change({name: np.array(weights_of(file, name)) for name in file.tensors})
        layers = int(file.metadata[f"{file.metadata['general.architecture']}.block_count"])
    found: Arrays = {}
    for name, weights in arrays.items():
        module, _, end = name.rpartition(".")
        if family.paired and module.endswith(("attn_q", "attn_k")):
            weights = unpaired(weights)
        if module.endswith("norm"):
            weights = weights - np.float32(family.less)
        if module == "output":
            found[f"{family.root.removesuffix('model.')}lm_head.{end}"] = weights
        elif module in TOP:
            found[f"{family.root}{TOP[module]}.{end}"] = weights
        else:
            _, layer, part = module.split(".", 2)
            place = f"{family.root}layers.{layer}."
            if part.endswith("_exps"):
                which = part.removeprefix("ffn_").removesuffix("_exps")
                found |= {f"{place}mlp.experts.{e}.{which}_proj.{end}": weights[e] for e in range(EXPERTS)}
            elif part == "exp_probs_b":
                found[f"{place}mlp.gate.e_score_correction_bias"] = weights
            else:
                found[f"{place}{({**NEXTN, **family.names})[part]}.{end}"] = weights
    config = BASE | {"num_hidden_layers": layers, "model_type": kind} | dict(family.config)
    config["tie_word_embeddings"] = "output.weight" not in arrays
    return write_folder(folder, {name: store("F32", weights) for name, weights in found.items()}, config)
