"""Model families as their config.json names them: the architecture in GGUF, and the names of their tensors there.

Names have no ``.weight`` or ``.bias``, which stay as they are. ``{i}`` is a layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeinfer.converted import reshaping
from edgeinfer.converted.reshaping import Reshape

_LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NEXT = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
    "embed_tokens": "nextn.embed_tokens",
}
"""Of the layer past the last one that predicts a further token, as DeepSeek and GLM name them."""
_MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
"""As Qwen names them, under ``mtp.``; the block is ``mtp.layers.0``."""
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
_STACKS = ("mlp.switch_mlp.", "experts.switch_glu.")
"""Where MLX has the experts of a layer in one tensor."""
_LAYER = re.compile(r"model\.layers\.(\d{1,4})\.(.+)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.(\w+)", re.ASCII)
_EVERYWHERE = (("model.language_model.", "model."), ("language_model.", ""))
"""Where models that also see or hear keep what reads and writes."""


@dataclass(frozen=True, slots=True)
class Family:
    """A row of FAMILIES. ``layer``: the modules of a layer, and their GGUF names."""

    architecture: str
    layer: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=dict)  # tensors whose names end in neither weight nor bias
    reshape: Mapping[str, Reshape] = field(default_factory=dict)  # by the GGUF name of a module, see ``reshaping``
    top: Mapping[str, str] = field(default_factory=dict)  # modules outside the layers, beside TOP
    aliases: tuple[tuple[str, str], ...] = ()  # beginnings of names, and what others call the same
    one_plus: bool = False  # norms multiply by 1 + w, and GGUF stores that sum
    added: bool = False  # ... as does MLX, where it has stacked the experts
    inputs_first: bool = False  # floats of ``whole`` lie the other way round
    experts: bool = False
    activation: tuple[str, ...] = ("silu",)  # what ``hidden_act`` may be
    numbers: Mapping[str, str] = field(default_factory=dict)  # settings, and their keys in GGUF without the prefix
    own: tuple[str, ...] = ()  # settings that others have only one value of, and that this family reads
    usual: Mapping[str, Any] = field(default_factory=dict)  # settings that published folders leave out

    @property
    def paired(self) -> bool:
        """GGUF has the channels of a rotated pair side by side, the folder has them half a head apart."""
        return self.reshape.get("attn_q") is reshaping.pairs

    def usual_name(self, name: str) -> str:
        """A name of the folder with the beginning that most families have."""
        for own, usual in (*_EVERYWHERE, *self.aliases):
            if name.startswith(own):
                name = usual + name.removeprefix(own)
        return name

    def rename_whole(self, name: str) -> str:
        """The GGUF name of a tensor of ``whole``; empty for others."""
        found = _LAYER.fullmatch(self.usual_name(name))
        part = self.whole.get(found[2], "") if found else ""
        return f"blk.{int(found[1])}.{part}" if found and part else ""

    def rename(self, module: str) -> tuple[str, int | None]:
        """The GGUF name of a module, and which of its experts it is; an empty name where there is none."""
        module = self.usual_name(module)
        if name := TOP.get(module) or self.top.get(module):
            return name, None
        found = _LAYER.fullmatch(module)
        if found is None:
            return "", None
        part, expert = found[2], None
        if self.experts and (one := _EXPERT.fullmatch(part)):
            part, expert = EXPERTS.get(one[2], ""), int(one[1])
        elif self.experts and (stack := next((each for each in _STACKS if part.startswith(each)), "")):
            part = EXPERTS.get(part.removeprefix(stack), "")
        else:
            part = self.layer.get(part) or _NEXT.get(part, "")
        return (f"blk.{int(found[1])}.{part}", expert) if part else ("", None)


def past_the_last(module: str, layers: int) -> str:
    """A module of the head for further tokens as one of the layer past the last one; any other as it is."""
    part = module.removeprefix("mtp.")
    if part == module:
        return module
    return f"model.layers.{layers}.{_MTP.get(part) or part.removeprefix('layers.0.')}"


_GLU = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
_GLM4 = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_up_proj": "ffn_up",
}
_SHARED = {
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_CORRECTION = {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
_FUSED = {"mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight", "mlp.experts.down_proj": "ffn_down_exps.weight"}
"""Experts as newer versions of transformers keep them."""
_ROUTED = {"n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count"}
_LATENT = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.embed_q": "attn_k_b",  # as MLX splits it
    "self_attn.unembed_out": "attn_v_b",
}
_BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_DELTA = {
    "linear_attn.in_proj_qkvz": "attn_qkvz",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_GEMMA4 = {
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
}
_PAIRED: Mapping[str, Reshape] = {"attn_q": reshaping.pairs, "attn_k": reshaping.pairs}
_DEEPSEEK = Family(
    "deepseek2",
    _LLAMA | _LATENT | _SHARED,
    whole=_CORRECTION | _FUSED,
    reshape={"attn_kv_b": reshaping.latents},
    experts=True,
    numbers=_ROUTED | {"kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank"},
)
_OLMO = Family("olmo2", {name: part for name, part in (_LLAMA | _HEAD_NORMS | _BEHIND).items() if part != "attn_norm"})
_GELU = ("gelu_pytorch_tanh", "gelu_tanh")
_SHARED_LLAMA = Family("llama", _LLAMA, reshape=_PAIRED)
FAMILIES: Mapping[str, Family] = {
    "llama": _SHARED_LLAMA,
    "mistral": _SHARED_LLAMA,
    "qwen2": Family("qwen2", _LLAMA),
    "qwen3": Family("qwen3", _LLAMA | _HEAD_NORMS),
    "qwen3_moe": Family(
        "qwen3moe", _LLAMA | _HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"}, whole=_FUSED, experts=True
    ),
    "qwen3_next": Family(
        "qwen3next",
        _LLAMA | _HEAD_NORMS | {"post_attention_layernorm": "post_attention_norm"} | _DELTA,
        whole=_FUSED | {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
        reshape={
            "attn_qkvz": reshaping.queries_keys_values_gate,
            "ssm_conv1d": reshaping.taps,
            "ssm_a": reshaping.decay,
            "ffn_gate_inp_shexp": reshaping.flat,
        },
        one_plus=True,
        added=True,
        experts=True,
        numbers={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        own=("partial_rotary_factor",),
    ),
    "nemotron_labs_diffusion": Family(
        "nemotron-labs-diffusion",
        _LLAMA,
        reshape=_PAIRED,
        aliases=(("encoder.", "model."), ("diffusion_head", "lm_head")),
    ),
    "ministral3": Family("mistral3", _LLAMA, reshape=_PAIRED),
    "phi3": Family("phi3", _LLAMA | _GLU, own=("partial_rotary_factor",)),
    "glm4": Family("glm4", _LLAMA | _GLM4, own=("partial_rotary_factor",)),
    "glm4_moe": Family(
        "glm4moe",
        _LLAMA | _HEAD_NORMS | {"post_attention_layernorm": "post_attention_norm"} | _SHARED,
        whole=_CORRECTION | _FUSED,
        experts=True,
        numbers=_ROUTED,
        own=("partial_rotary_factor",),
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "granite": Family(
        "granite",
        _LLAMA,
        reshape=_PAIRED,
        numbers={
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale",
            "logits_scaling": "logit_scale",
        },
    ),
    "smollm3": Family("smollm3", _LLAMA, reshape=_PAIRED, own=("no_rope_layers",)),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "gpt_oss": Family(
        "gpt-oss",
        _LLAMA
        | {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
        | {f"mlp.experts.{theirs}": ours for theirs, ours in EXPERTS.items()},  # as MLX splits them
        whole=_FUSED
        | {f"{name}_blocks": target for name, target in _FUSED.items()}
        | {f"{name}_bias": target.replace("weight", "bias") for name, target in _FUSED.items()}
        | {"self_attn.sinks": "attn_sinks.weight"},
        reshape={"ffn_gate_up_exps": reshaping.even_and_odd},
        inputs_first=True,
        experts=True,
        numbers={"intermediate_size": "expert_feed_forward_length"},
    ),
    "mamba2": Family(
        "mamba2",
        {
            "norm": "attn_norm",
            "mixer.in_proj": "ssm_in",
            "mixer.conv1d": "ssm_conv1d",
            "mixer.norm": "ssm_norm",
            "mixer.out_proj": "ssm_out",
        },
        whole={"mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.dt_bias": "ssm_dt.bias"},
        reshape={
            "ssm_conv1d": reshaping.taps,
            "ssm_a": reshaping.decay_column,
            "ssm_d": reshaping.column,
            "ssm_norm": reshaping.by_group,
        },
        top={"model.embeddings": "token_embd", "model.norm_f": "output_norm"},
        aliases=(("model.backbone.", "model."), ("backbone.", "model."), ("model.lm_head", "lm_head")),
    ),
    "gemma2": Family("gemma2", _LLAMA | _SANDWICH, one_plus=True, activation=_GELU),
    "gemma3_text": Family(
        "gemma3",
        _LLAMA | _HEAD_NORMS | _SANDWICH,
        one_plus=True,
        activation=_GELU,
        usual={
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
        },
    ),
    "gemma4_text": Family(
        "gemma4",
        _LLAMA | _HEAD_NORMS | _SANDWICH | _GEMMA4,
        whole={
            "layer_scalar": "layer_output_scale.weight",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "experts.down_proj": "ffn_down_exps.weight",
        },
        top={
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
        },
        experts=True,
        activation=_GELU,
        numbers={"hidden_size_per_layer_input": "embedding_length_per_layer_input"},
        own=("use_bidirectional_attention",),
    ),
}  # fmt: skip
"""By ``model_type``."""
