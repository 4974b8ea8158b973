"""Random tensors of the larger families: what a layer of each has that ``tests.tiny``'s Llama has not, and lacks."""

from __future__ import annotations

import numpy as np

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


SPARSE = {".expert_count": EXPERTS, ".expert_used_count": USED, ".expert_feed_forward_length": EXPERT_INNER}
YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64}


def glm4(make: Maker, layer: int) -> Tensors:
    return {
        "ffn_gate.weight": None,
        "ffn_up.weight": make.matrix(2 * INNER, HIDDEN),
        "post_attention_norm.weight": make.norm(HIDDEN),
        "post_ffw_norm.weight": make.norm(HIDDEN),
    }


def glm4moe(make: Maker, layer: int) -> Tensors:
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


def deepseek2(make: Maker, layer: int) -> Tensors:
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


def deepseek2_lite(make: Maker, layer: int) -> Tensors:
    queries = make.matrix(HEADS * (PLAIN + TURNED), HIDDEN)
    absent = {"attn_q_a.weight": None, "attn_q_a_norm.weight": None, "attn_q_b.weight": None, "exp_probs_b.bias": None}
    return deepseek2(make, layer) | absent | {"attn_q.weight": queries}


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


def gpt_oss(make: Maker, layer: int) -> Tensors:
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


def phi3(make: Maker, layer: int) -> Tensors:
    return {
        "attn_q.weight": None,
        "attn_k.weight": None,
        "attn_v.weight": None,
        "attn_qkv.weight": make.matrix((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN),
        "ffn_gate.weight": None,
        "ffn_up.weight": make.matrix(2 * INNER, HIDDEN),
    }


def long_factors(make: Maker) -> Tensors:
    pairs = 3 * SIZE // 8
    return {
        "rope_factors_long.weight": np.linspace(1, 9, pairs),
        "rope_factors_short.weight": np.linspace(1, 1.5, pairs),
    }


def post_norms(make: Maker, layer: int) -> Tensors:
    return {"post_attention_norm.weight": make.norm(HIDDEN), "post_ffw_norm.weight": make.norm(HIDDEN)}


def olmo2(make: Maker, layer: int) -> Tensors:
    more: Tensors = {
        "attn_norm.weight": None,
        "ffn_norm.weight": None,
        "attn_q_norm.weight": make.norm(HEADS * SIZE),
        "attn_k_norm.weight": make.norm(KV_HEADS * SIZE),
    }
    return post_norms(make, layer) | more


INNER_STATE, STATE, STATE_HEADS, GROUPS = 128, 16, 8, 2
NO_ATTENTION: Tensors = {f"attn_{name}.weight": None for name in ("q", "k", "v", "output")}
NO_NETWORK: Tensors = {f"ffn_{name}.weight": None for name in ("norm", "gate", "up", "down")}


def mamba2(make: Maker, layer: int) -> Tensors:
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


def qwen3next(make: Maker, layer: int) -> Tensors:
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


NEAR, FAR, OWN = 16, 32, 8
GEMMA4_WINDOWED = (True, False, True, False, True, False)


def gemma4(make: Maker, layer: int, borrowing: bool = True) -> Tensors:
    size = NEAR if GEMMA4_WINDOWED[layer] else FAR
    kv_heads = KV_HEADS if GEMMA4_WINDOWED[layer] else 1
    made = post_norms(make, layer) | {
        "attn_q.weight": make.matrix(HEADS * size, HIDDEN),
        "attn_k.weight": make.matrix(kv_heads * size, HIDDEN),
        "attn_v.weight": make.matrix(kv_heads * size, HIDDEN) if layer != 1 else None,
        "attn_output.weight": make.matrix(HIDDEN, HEADS * size),
        "attn_q_norm.weight": make.norm(size),
        "attn_k_norm.weight": make.norm(size),
        "layer_output_scale.weight": np.array([0.8]),
        "inp_gate.weight": make.matrix(OWN, HIDDEN),
        "proj.weight": make.matrix(HIDDEN, OWN),
        "post_norm.weight": make.norm(HIDDEN),
    }
    if layer == 4 and borrowing:
        made |= {"attn_k.weight": None, "attn_v.weight": None, "attn_k_norm.weight": None}
    return made


def gemma4_top(make: Maker) -> Tensors:
    return {
        "rope_freqs.weight": np.array([1.0] * (FAR // 8) + [1e30] * (FAR * 3 // 8)),
        "per_layer_token_embd.weight": make.matrix(320, 6 * OWN),
        "per_layer_model_proj.weight": make.matrix(6 * OWN, HIDDEN),
        "per_layer_proj_norm.weight": make.norm(OWN),
    }


def gemma4_sparse(make: Maker, layer: int) -> Tensors:
    """Without embeddings of the layers, and with experts beside the network."""
    absent = dict.fromkeys(("inp_gate.weight", "proj.weight", "post_norm.weight"))
    experts = {name: tensor for name, tensor in make.experts().items() if tensor is not None}
    more: Tensors = {
        "ffn_gate_inp.scale": make.norm(HIDDEN),
        "ffn_down_exps.scale": make.norm(EXPERTS),
        "pre_ffw_norm_2.weight": make.norm(HIDDEN),
        "post_ffw_norm_1.weight": make.norm(HIDDEN),
        "post_ffw_norm_2.weight": make.norm(HIDDEN),
    }
    return gemma4(make, layer, borrowing=False) | absent | experts | more


GEMMA4 = WINDOW | {
    ".attention.sliding_window_pattern": list(GEMMA4_WINDOWED),
    ".attention.shared_kv_layers": 2,
    ".attention.head_count_kv": [KV_HEADS if each else 1 for each in GEMMA4_WINDOWED],
    ".attention.key_length": FAR,
    ".attention.value_length": FAR,
    ".attention.key_length_swa": NEAR,
    ".attention.value_length_swa": NEAR,
    ".rope.dimension_count": FAR,
    ".rope.dimension_count_swa": NEAR,
    ".rope.freq_base_swa": 5000.0,
    ".embedding_length_per_layer_input": OWN,
    ".final_logit_softcapping": 3.0,
}
