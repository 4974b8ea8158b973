"""Model families as their config.json names them: the architecture in GGUF, and the names of their tensors there.

Names have no ``.weight`` or ``.bias``, which stay as they are. ``{i}`` is a layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
_LAYER = re.compile(r"model\.layers\.(\d{1,4})\.(.+)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.(\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Family:
    """``paired``: GGUF has the channels of a rotated pair side by side, the folder has them half a head apart.

    ``one_plus``: norms multiply by 1 + w, and GGUF stores that sum. ``activation`` is what ``hidden_act`` must be.
    """

    architecture: str
    layer: Mapping[str, str]
    paired: bool = False
    one_plus: bool = False
    experts: bool = False
    activation: tuple[str, ...] = ("silu",)
    numbers: Mapping[str, str] = field(default_factory=dict)  # settings, and their keys in GGUF without the prefix
    own: tuple[str, ...] = ()  # settings that others have only one value of, and that this family reads
    whole: Mapping[str, str] = field(default_factory=dict)  # tensors whose names end in neither weight nor bias
    latent: bool = False  # one tensor of the folder is GGUF's attn_k_b and attn_v_b
    aliases: tuple[tuple[str, str], ...] = ()  # beginnings of names, and what others call the same

    def rename_whole(self, name: str) -> str:
        """The GGUF name of a tensor of ``whole``; empty for others."""
        found = _LAYER.fullmatch(name)
        part = self.whole.get(found[2], "") if found else ""
        return f"blk.{int(found[1])}.{part}" if found and part else ""

    def rename(self, module: str) -> tuple[str, int | None]:
        """The GGUF name of a module, and which of its experts it is; an empty name where there is none."""
        for own, usual in self.aliases:
            if module.startswith(own):
                module = usual + module.removeprefix(own)
        if module in TOP:
            return TOP[module], None
        found = _LAYER.fullmatch(module)
        if found is None:
            return "", None
        layer, part = int(found[1]), found[2]
        if self.experts and (expert := _EXPERT.fullmatch(part)) and expert[2] in EXPERTS:
            return f"blk.{layer}.{EXPERTS[expert[2]]}", int(expert[1])
        if self.experts and part.startswith("mlp.switch_mlp."):  # as MLX stacks them
            part = EXPERTS.get(part.removeprefix("mlp.switch_mlp."), "")
            return (f"blk.{layer}.{part}", None) if part else ("", None)
        part = self.layer.get(part) or _NEXT.get(part, "")
        return (f"blk.{layer}.{part}", None) if part else ("", None)


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
_ROUTED = {"n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count"}
_LATENT = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
_BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_DEEPSEEK = Family(
    "deepseek2",
    _LLAMA | _LATENT | _SHARED,
    experts=True,
    numbers=_ROUTED | {"kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank"},
    whole=_CORRECTION,
    latent=True,
)
_OLMO = Family("olmo2", {name: part for name, part in (_LLAMA | _HEAD_NORMS | _BEHIND).items() if part != "attn_norm"})
_GELU = ("gelu_pytorch_tanh", "gelu_tanh")
_SHARED_LLAMA = Family("llama", _LLAMA, paired=True)
FAMILIES: Mapping[str, Family] = {
    "llama": _SHARED_LLAMA,
    "mistral": _SHARED_LLAMA,
    "qwen2": Family("qwen2", _LLAMA),
    "qwen3": Family("qwen3", _LLAMA | _HEAD_NORMS),
    "qwen3_moe": Family("qwen3moe", _LLAMA | _HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"}, experts=True),
    "nemotron_labs_diffusion": Family(
        "nemotron-labs-diffusion",
        _LLAMA,
        paired=True,
        aliases=(("encoder.", "model."), ("diffusion_head", "lm_head")),
    ),
    "ministral3": Family("mistral3", _LLAMA, paired=True, aliases=(("model.language_model.", "model."),)),
    "phi3": Family("phi3", _LLAMA | _GLU, own=("partial_rotary_factor",)),
    "glm4": Family("glm4", _LLAMA | _GLM4, own=("partial_rotary_factor",)),
    "glm4_moe": Family(
        "glm4moe",
        _LLAMA | _HEAD_NORMS | {"post_attention_layernorm": "post_attention_norm"} | _SHARED,
        experts=True,
        numbers=_ROUTED,
        own=("partial_rotary_factor",),
        whole=_CORRECTION,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "granite": Family(
        "granite",
        _LLAMA,
        paired=True,
        numbers={
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale",
            "logits_scaling": "logit_scale",
        },
    ),
    "smollm3": Family("smollm3", _LLAMA, paired=True, own=("no_rope_layers",)),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "gpt_oss": Family(
        "gpt-oss",
        _LLAMA
        | {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
        | {f"mlp.experts.{theirs}": ours for theirs, ours in EXPERTS.items()},  # as MLX splits them
        experts=True,
        numbers={"num_local_experts": "expert_count", "intermediate_size": "expert_feed_forward_length"},
        whole={"self_attn.sinks": "attn_sinks.weight"},
    ),
    "gemma2": Family("gemma2", _LLAMA | _SANDWICH, one_plus=True, activation=_GELU),
    "gemma3_text": Family("gemma3", _LLAMA | _HEAD_NORMS | _SANDWICH, one_plus=True, activation=_GELU),
}
"""By ``model_type``."""
