"""Tiny random models of the larger families: what each has that ``tests.tiny``'s Llama has not, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import tiny_gguf

HIDDEN, HEADS, KV_HEADS, SIZE, INNER = 64, 4, 2, 16, 128
EXPERTS, USED, EXPERT_INNER = 8, 3, 32
Tensors = dict[str, np.ndarray | None]


class Maker:
    """Random tensors of the usual sizes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def matrix(self, *shape: int) -> np.ndarray:
        return np.asarray(self.random.standard_normal(shape) * 1.5 / np.sqrt(shape[-1]))

    def norm(self, size: int) -> np.ndarray:
        return np.asarray(1 + 0.2 * self.random.standard_normal(size))

    def bias(self, *shape: int) -> np.ndarray:
        return np.asarray(0.3 * self.random.standard_normal(shape))

    def experts(self) -> Tensors:
        """In place of a feed-forward network."""
        return {
            "ffn_gate.weight": None,
            "ffn_up.weight": None,
            "ffn_down.weight": None,
            "ffn_gate_inp.weight": self.matrix(EXPERTS, HIDDEN),
            "ffn_gate_exps.weight": self.matrix(EXPERTS, EXPERT_INNER, HIDDEN),
            "ffn_up_exps.weight": self.matrix(EXPERTS, EXPERT_INNER, HIDDEN),
            "ffn_down_exps.weight": self.matrix(EXPERTS, HIDDEN, EXPERT_INNER),
        }

    def shared(self, inner: int = EXPERT_INNER) -> Tensors:
        return {
            "ffn_gate_shexp.weight": self.matrix(inner, HIDDEN),
            "ffn_up_shexp.weight": self.matrix(inner, HIDDEN),
            "ffn_down_shexp.weight": self.matrix(HIDDEN, inner),
        }

    def biases(self) -> Tensors:
        return {
            "attn_q.bias": self.bias(HEADS * SIZE),
            "attn_k.bias": self.bias(KV_HEADS * SIZE),
            "attn_v.bias": self.bias(KV_HEADS * SIZE),
        }

    def qk_norms(self) -> Tensors:
        return {"attn_q_norm.weight": self.norm(SIZE), "attn_k_norm.weight": self.norm(SIZE)}


@dataclass(frozen=True)
class Family:
    """``block`` gives the tensors of a layer that are added, replaced or (None) dropped; keys start with a dot."""

    block: Callable[[Maker, int], Tensors] = lambda make, layer: {}
    keys: Mapping[str, Any] = field(default_factory=dict)
    top: Callable[[Maker], Tensors] = lambda make: {}
    layers: int = 3
    tied: bool = True


SPARSE = {".expert_count": EXPERTS, ".expert_used_count": USED, ".expert_feed_forward_length": EXPERT_INNER}
YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64}


def _glm4(make: Maker, layer: int) -> Tensors:
    return {
        "ffn_gate.weight": None,
        "ffn_up.weight": make.matrix(2 * INNER, HIDDEN),
        "post_attention_norm.weight": make.norm(HIDDEN),
        "post_ffw_norm.weight": make.norm(HIDDEN),
    }


def _glm4moe(make: Maker, layer: int) -> Tensors:
    made: Tensors = {"ffn_norm.weight": None, "post_attention_norm.weight": make.norm(HIDDEN)}
    made |= make.biases() | make.qk_norms()
    if layer:
        made |= make.experts() | make.shared() | {"exp_probs_b.bias": make.bias(EXPERTS)}
    if layer == 3:
        made |= {
            "nextn.eh_proj.weight": make.matrix(HIDDEN, 2 * HIDDEN),
            "nextn.enorm.weight": make.norm(HIDDEN),
            "nextn.hnorm.weight": make.norm(HIDDEN),
            "nextn.shared_head_norm.weight": make.norm(HIDDEN),
        }
    return made


LATENT, TURNED, PLAIN, VALUE, NARROW = 32, 8, 16, 24, 48


def _deepseek2(make: Maker, layer: int) -> Tensors:
    made: Tensors = {
        "attn_q.weight": None,
        "attn_k.weight": None,
        "attn_v.weight": None,
        "attn_q_a.weight": make.matrix(NARROW, HIDDEN),
        "attn_q_a_norm.weight": make.norm(NARROW),
        "attn_q_b.weight": make.matrix(HEADS * (PLAIN + TURNED), NARROW),
        "attn_kv_a_mqa.weight": make.matrix(LATENT + TURNED, HIDDEN),
        "attn_kv_a_norm.weight": make.norm(LATENT),
        "attn_k_b.weight": make.matrix(HEADS, LATENT, PLAIN),
        "attn_v_b.weight": make.matrix(HEADS, VALUE, LATENT),
        "attn_output.weight": make.matrix(HIDDEN, HEADS * VALUE),
    }
    if layer:
        made |= make.experts() | make.shared(2 * EXPERT_INNER) | {"exp_probs_b.bias": make.bias(EXPERTS)}
    return made


def _deepseek2_lite(make: Maker, layer: int) -> Tensors:
    queries = make.matrix(HEADS * (PLAIN + TURNED), HIDDEN)
    absent = {"attn_q_a.weight": None, "attn_q_a_norm.weight": None, "attn_q_b.weight": None, "exp_probs_b.bias": None}
    return _deepseek2(make, layer) | absent | {"attn_q.weight": queries}


DEEPSEEK2 = SPARSE | {
    ".attention.head_count_kv": 1,
    ".attention.kv_lora_rank": LATENT,
    ".attention.key_length": LATENT + TURNED,
    ".attention.value_length": LATENT,
    ".attention.key_length_mla": PLAIN + TURNED,
    ".attention.value_length_mla": VALUE,
    ".rope.dimension_count": TURNED,
    ".leading_dense_block_count": 1,
    ".expert_shared_count": 2,
}


def _gpt_oss(make: Maker, layer: int) -> Tensors:
    more: Tensors = {
        "attn_output.bias": make.bias(HIDDEN),
        "attn_sinks.weight": make.bias(HEADS),
        "ffn_norm.weight": None,
        "post_attention_norm.weight": make.norm(HIDDEN),
        "ffn_gate_inp.bias": make.bias(EXPERTS),
        "ffn_gate_exps.bias": make.bias(EXPERTS, EXPERT_INNER),
        "ffn_up_exps.bias": make.bias(EXPERTS, EXPERT_INNER),
        "ffn_down_exps.bias": make.bias(EXPERTS, HIDDEN),
    }
    return make.biases() | make.experts() | more


def _phi3(make: Maker, layer: int) -> Tensors:
    return {
        "attn_q.weight": None,
        "attn_k.weight": None,
        "attn_v.weight": None,
        "attn_qkv.weight": make.matrix((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN),
        "ffn_gate.weight": None,
        "ffn_up.weight": make.matrix(2 * INNER, HIDDEN),
    }


def _long_factors(make: Maker) -> Tensors:
    pairs = 3 * SIZE // 8
    return {
        "rope_factors_long.weight": np.linspace(1, 9, pairs),
        "rope_factors_short.weight": np.linspace(1, 1.5, pairs),
    }


def _post_norms(make: Maker, layer: int) -> Tensors:
    return {"post_attention_norm.weight": make.norm(HIDDEN), "post_ffw_norm.weight": make.norm(HIDDEN)}


def _olmo2(make: Maker, layer: int) -> Tensors:
    more: Tensors = {
        "attn_norm.weight": None,
        "ffn_norm.weight": None,
        "attn_q_norm.weight": make.norm(HEADS * SIZE),
        "attn_k_norm.weight": make.norm(KV_HEADS * SIZE),
    }
    return _post_norms(make, layer) | more


INNER_STATE, STATE, STATE_HEADS, GROUPS = 128, 16, 8, 2
NO_ATTENTION: Tensors = {f"attn_{name}.weight": None for name in ("q", "k", "v", "output")}
NO_NETWORK: Tensors = {f"ffn_{name}.weight": None for name in ("norm", "gate", "up", "down")}


def _mamba2(make: Maker, layer: int) -> Tensors:
    mixed = INNER_STATE + 2 * GROUPS * STATE
    more: Tensors = {
        "ssm_in.weight": make.matrix(INNER_STATE + mixed + STATE_HEADS, HIDDEN),
        "ssm_conv1d.weight": make.matrix(mixed, 4),
        "ssm_conv1d.bias": make.bias(mixed),
        "ssm_dt.bias": make.bias(STATE_HEADS) - 1,
        "ssm_a": -np.exp(make.bias(STATE_HEADS, 1) - 1),
        "ssm_d": make.bias(STATE_HEADS, 1),
        "ssm_norm.weight": make.norm(INNER_STATE).reshape(GROUPS, -1),
        "ssm_out.weight": make.matrix(HIDDEN, INNER_STATE),
    }
    return NO_ATTENTION | NO_NETWORK | more


KEY_HEADS, VALUE_HEADS = 2, 4


def _qwen3next(make: Maker, layer: int) -> Tensors:
    made: Tensors = make.experts() | make.shared() | {"ffn_gate_inp_shexp.weight": make.bias(HIDDEN)}
    made |= {"ffn_norm.weight": None, "post_attention_norm.weight": make.norm(HIDDEN)}
    if layer % 4 == 3:
        return made | make.qk_norms() | {"attn_q.weight": make.matrix(2 * HEADS * SIZE, HIDDEN)}
    mixed, values = (2 * KEY_HEADS + VALUE_HEADS) * STATE, VALUE_HEADS * STATE
    more: Tensors = {
        "attn_qkv.weight": make.matrix(mixed, HIDDEN),
        "attn_gate.weight": make.matrix(values, HIDDEN),
        "ssm_ba.weight": make.matrix(2 * VALUE_HEADS, HIDDEN),
        "ssm_conv1d.weight": make.matrix(mixed, 4),
        "ssm_dt.bias": make.bias(VALUE_HEADS) - 1,
        "ssm_a": -np.exp(make.bias(VALUE_HEADS) - 1),
        "ssm_norm.weight": make.norm(STATE),
        "ssm_out.weight": make.matrix(HIDDEN, values),
    }
    return made | NO_ATTENTION | more


QWEN3NEXT = SPARSE | {
    ".expert_shared_feed_forward_length": EXPERT_INNER,
    ".rope.dimension_count": SIZE // 2,
    ".full_attention_interval": 4,
    ".ssm.conv_kernel": 4,
    ".ssm.inner_size": VALUE_HEADS * STATE,
    ".ssm.state_size": STATE,
    ".ssm.time_step_rank": VALUE_HEADS,
    ".ssm.group_count": KEY_HEADS,
}
MAMBA2 = {
    ".attention.head_count": 0,
    ".attention.head_count_kv": None,
    ".attention.key_length": None,
    ".attention.value_length": None,
    ".rope.freq_base": None,
    ".rope.dimension_count": None,
    ".feed_forward_length": 0,
    ".ssm.conv_kernel": 4,
    ".ssm.inner_size": INNER_STATE,
    ".ssm.state_size": STATE,
    ".ssm.time_step_rank": STATE_HEADS,
    ".ssm.group_count": GROUPS,
}
WINDOW = {".attention.sliding_window": 32}

FAMILIES: dict[str, Family] = {
    "mistral3": Family(),
    "qwen3moe": Family(lambda make, layer: make.experts() | make.qk_norms(), SPARSE),
    "glm4": Family(_glm4, {".rope.dimension_count": SIZE // 2}),
    "glm4moe": Family(
        _glm4moe,
        SPARSE
        | {
            ".rope.dimension_count": SIZE // 2,
            ".expert_shared_count": 1,
            ".leading_dense_block_count": 1,
            ".expert_weights_norm": True,
            ".expert_weights_scale": 2.5,
            ".nextn_predict_layers": 1,
        },
        layers=4,
    ),
    "deepseek2": Family(
        _deepseek2,
        DEEPSEEK2
        | {
            ".attention.q_lora_rank": NARROW,
            ".expert_gating_func": 2,
            ".expert_weights_norm": True,
            ".expert_weights_scale": 2.5,
            ".expert_group_count": 4,
            ".expert_group_used_count": 2,
        },
    ),
    "deepseek2 lite": Family(_deepseek2_lite, DEEPSEEK2, layers=26),
    "gpt-oss": Family(_gpt_oss, SPARSE | WINDOW, tied=False),
    "phi3": Family(
        _phi3,
        {
            ".rope.dimension_count": 3 * SIZE // 4,
            ".rope.scaling.type": "longrope",
            ".rope.scaling.original_context_length": 64,
            ".rope.scaling.attn_factor": 1.2,
            ".attention.sliding_window": 7,
            "general.name": "tiny",  # llama.cpp wants tokens of a model that says it is a phi3
        },
        _long_factors,
        tied=False,
    ),
    "gemma2": Family(_post_norms, WINDOW | {".attn_logit_softcapping": 5.0, ".final_logit_softcapping": 3.0}, layers=4),
    "granite": Family(
        keys={
            ".logit_scale": 1.7,
            ".residual_scale": 0.4,
            ".embedding_scale": 3.0,
            ".attention.scale": 0.1,
            ".vocab_size": 320,
        }
    ),
    "smollm3": Family(layers=5),
    "olmo2": Family(_olmo2, layers=5, tied=False),
    "mamba2": Family(_mamba2, MAMBA2),
    "qwen3next": Family(_qwen3next, QWEN3NEXT, layers=5),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral3": ("mistral3", {}),
    "mistral3, yarn and a temperature": (
        "mistral3",
        YARN
        | {
            ".rope.scaling.yarn_beta_fast": 16.0,
            ".rope.scaling.yarn_beta_slow": 2.0,
            ".rope.scaling.yarn_log_multiplier": 0.5,
            ".attention.temperature_scale": 0.1,
        },
    ),
    "qwen3moe": ("qwen3moe", {}),
    "qwen3moe, yarn": ("qwen3moe", YARN),
    "glm4": ("glm4", {}),
    "glm4, yarn": ("glm4", YARN),
    "glm4moe": ("glm4moe", {}),
    "glm4moe, softmax of groups": (
        "glm4moe",
        {
            ".expert_gating_func": 1,
            ".expert_weights_norm": False,
            ".expert_group_count": 4,
            ".expert_group_used_count": 2,
        },
    ),
    "deepseek2": ("deepseek2", {}),
    "deepseek2, yarn": ("deepseek2", YARN | {".rope.scaling.yarn_log_multiplier": 0.1}),
    "deepseek2, yarn of V2": ("deepseek2", YARN | {".rope.scaling.yarn_log_multiplier": 0.0707}),
    "deepseek2, a temperature": (
        "deepseek2",
        {".attention.temperature_scale": 0.1, ".attention.temperature_length": 64},
    ),
    "deepseek2 lite": ("deepseek2 lite", YARN),
    "gpt-oss": ("gpt-oss", YARN),
    "gpt-oss, windows by layer": ("gpt-oss", {".attention.sliding_window_pattern": [False, True, True]}),
    "phi3, past its original context": ("phi3", {}),
    "phi3, within its original context": ("phi3", {".rope.scaling.original_context_length": 512}),
    "phi3, no type of scaling": ("phi3", {".rope.scaling.type": None}),
    "gemma2": ("gemma2", {}),
    "granite": ("granite", {}),
    "granite, the least": (
        "granite",
        {".residual_scale": None, ".embedding_scale": None, ".attention.scale": None, ".rope.scaling.finetuned": True},
    ),
    "smollm3": ("smollm3", YARN),
    "mamba2": ("mamba2", {}),
    "qwen3next": ("qwen3next", {}),
    "olmo2": ("olmo2", {}),
    "olmo2, windows and yarn of OLMo 3": (
        "olmo2",
        YARN | WINDOW | {".attention.sliding_window_pattern": [True, True, True, False, True]},
    ),
}
"""Keys that are added to a family's own. Each is run past windows of 32 and past the original context of 64."""


def tiny(path: Path, architecture: str, keys: Mapping[str, Any] | None = None, seed: int = 0, **options: Any) -> Path:
    """Writes a model of a family; other options are those of ``tiny_gguf``."""
    family = FAMILIES[architecture]
    make = Maker(seed + 1)
    tensors = family.top(make)
    for layer in range(family.layers):
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in family.block(make, layer).items()}
    return tiny_gguf(
        path,
        architecture.split()[0],
        seed,
        layers=family.layers,
        tied=family.tied,
        metadata={**family.keys, **(keys or {})},
        tensors=tensors,
        **options,
    )
