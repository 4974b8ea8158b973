"""What single families say in config.json beside the settings that all have, read from a GGUF file: the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from edgeinfer.converted.kinds import FULL, SLIDING
from edgeinfer.formats.config import Config

Said: TypeAlias = dict[str, Any]
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The one size of each whose queries are scaled by its embedding's share of a head."""


def _gemma(config: Config, said: Said) -> Said:
    per_head = said["head_dim"]
    if said["num_hidden_layers"] == _LAYERS_OF_27B[config.architecture]:
        per_head = said["hidden_size"] / said["num_attention_heads"]
    return {
        "query_pre_attn_scalar": per_head,
        "sliding_window": config.read("attention.sliding_window", int),
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": config.read("final_logit_softcapping", float, None),
        "attn_logit_softcapping": config.read("attn_logit_softcapping", float, None),
    }


def _gemma3(config: Config, said: Said) -> Said:
    return _gemma(config, said) | {
        "sliding_window_pattern": config.read("attention.sliding_window_pattern", int, 6),
        "rope_local_base_freq": config.read("rope.freq_base_swa", float, 10000.0),
    }


def _qwen2(config: Config, said: Said) -> Said:
    heads = said["num_attention_heads"]
    if said["head_dim"] * heads != said["hidden_size"]:
        raise config.unsupported("attention.key_length", said["head_dim"], (said["hidden_size"] // heads,))
    return {}


def _qwen3moe(config: Config, said: Said) -> Said:
    return {
        "num_experts": config.read("expert_count", int),
        "num_experts_per_tok": config.read("expert_used_count", int),
        "moe_intermediate_size": config.read("expert_feed_forward_length", int),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _granite(config: Config, said: Said) -> Said:
    return {
        "embedding_multiplier": config.read("embedding_scale", float, 1.0),
        "residual_multiplier": config.read("residual_scale", float, 1.0),
        "attention_multiplier": config.read("attention.scale", float, said["head_dim"] ** -0.5),
        "logits_scaling": config.read("logit_scale", float, 1.0),
    }


def _smollm3(config: Config, said: Said) -> Said:
    return {"no_rope_layers": [int((i + 1) % 4 != 0) for i in range(said["num_hidden_layers"])]}


def _olmo2(config: Config, said: Said) -> Said:
    """OLMo 3 where layers have windows."""
    if not (window := config.read("attention.sliding_window", int, 0)):
        return {}
    windowed = config.pattern("attention.sliding_window_pattern", said["num_hidden_layers"], 4)
    kinds = [SLIDING if each else FULL for each in windowed]
    return {"model_type": "olmo3", "sliding_window": window, "layer_types": kinds}


def _glm4(config: Config, said: Said) -> Said:
    turned = config.read("rope.dimension_count", int, said["head_dim"])
    return {"partial_rotary_factor": turned / said["head_dim"]}


SAID: Mapping[str, Callable[[Config, Said], Said]] = {
    "gemma2": _gemma,
    "gemma3": _gemma3,
    "qwen2": _qwen2,
    "qwen3moe": _qwen3moe,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "glm4": _glm4,
}
"""By ``general.architecture``; is given what all families say."""
