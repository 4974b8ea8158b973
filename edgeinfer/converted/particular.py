"""What the ``config.json`` of single families says that others have no word for, as GGUF keys without their prefix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.gemmas import gemma2, gemma3, gemma4
from edgeinfer.converted.kinds import FULL, SLIDING, Keys, head_size, layers_of

if TYPE_CHECKING:
    from edgeinfer.converted.settings import Settings

_GATES = {"softmax": 1, "sigmoid": 2}  # ``expert_gating_func``, in the numbers of llama.cpp
_YARN_SHARE = 0.1  # llama.cpp stores ``mscale_all_dim`` times this


def long_factors(settings: Settings) -> dict[str, NDArray[np.float32]]:
    """LongRoPE's factors of each rotated pair, as tensors."""
    scaling, pairs = settings.scaling(), _turned(settings) // 2
    found = {}
    for name in ("long", "short"):
        values = scaling.get(f"{name}_factor")
        if not isinstance(values, list) or len(values) != pairs or not all(_positive(each) for each in values):
            raise settings.unsupported("rope_scaling", f"{name}_factor", f"{pairs} positive numbers")
        found[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    return found


def _positive(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


def _turned(settings: Settings) -> int:
    share = settings.number("partial_rotary_factor", settings.scaling()) or settings.number("partial_rotary_factor")
    return int(head_size(settings) * (1.0 if share is None else share))


def _phi3(settings: Settings) -> Keys:
    found: Keys = {"rope.dimension_count": _turned(settings)}
    if (window := settings.whole("sliding_window")) is not None:
        found["attention.sliding_window"] = window
    if settings.rope_type() not in ("longrope", "su"):
        return found
    longest, original = settings.whole("max_position_embeddings"), settings.whole("original_max_position_embeddings")
    original = original or settings.whole("original_max_position_embeddings", source=settings.scaling())
    if not longest or not original or original < 2:
        raise settings.unsupported("original_max_position_embeddings", original, "a whole number of tokens")
    scale = longest / original
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    return found | {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": factor}


def _glm4(settings: Settings) -> Keys:
    return {"rope.dimension_count": _turned(settings)}


def _qwen_moe(settings: Settings) -> Keys:
    if settings.config.get("norm_topk_prob") is not True:
        raise settings.unsupported("norm_topk_prob", settings.config.get("norm_topk_prob"), "True")
    return settings.window()


def _qwen_next(settings: Settings) -> Keys:
    keys, values = settings.whole("linear_key_head_dim"), settings.whole("linear_value_head_dim")
    if keys != values:
        raise settings.unsupported("linear_value_head_dim", values, f"{keys}, as linear_key_head_dim")
    heads = settings.whole("linear_num_value_heads") or 0
    share = settings.number("partial_rotary_factor", settings.scaling()) or settings.number("partial_rotary_factor")
    found: Keys = _qwen_moe(settings) | {
        "rope.dimension_count": int(head_size(settings) * (share or 0.25)),
        "ssm.conv_kernel": settings.whole("linear_conv_kernel_dim"),
        "ssm.state_size": keys,
        "ssm.group_count": settings.whole("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * (values or 0),
        "full_attention_interval": settings.whole("full_attention_interval", 4),
    }
    if (kinds := settings.config.get("layer_types")) is not None:
        found["attention.recurrent_layers"] = layers_of(settings, kinds, "linear_attention")
    return found


def _mamba2(settings: Settings) -> Keys:
    inner = (settings.whole("expand") or 2) * (settings.whole("hidden_size") or 0)
    size = settings.whole("head_dim") or 64
    limit = settings.config.get("time_step_limit")
    if isinstance(limit, list) and limit[:1] not in ([0], []):
        raise settings.unsupported("time_step_limit", limit, "from 0 on")
    if isinstance(limit, list) and type(limit[-1]) in (int, float) and math.isfinite(limit[-1]):
        raise settings.unsupported("time_step_limit", limit, "no upper end")
    for key, value in (("norm_before_gate", False), ("rms_norm", True)):
        if settings.config.get(key, value) is not value:
            raise settings.unsupported(key, settings.config[key], str(value))
    absent = ("attention.key_length", "attention.value_length", "attention.head_count_kv", "vocab_size")
    return dict.fromkeys(absent) | {
        "context_length": settings.whole("max_position_embeddings") or 1 << 20,  # any number: nothing depends on it
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": settings.number("layer_norm_epsilon") or 1e-5,
        "ssm.conv_kernel": settings.whole("conv_kernel") or 4,
        "ssm.inner_size": inner,
        "ssm.state_size": settings.whole("state_size") or 128,
        "ssm.time_step_rank": inner // size,
        "ssm.group_count": settings.whole("n_groups") or 1,
    }


def _experts(settings: Settings, gate: str = "sigmoid") -> Keys:
    """The routing of DeepSeek's kind."""
    method = settings.config.get("scoring_func", gate)
    if method not in _GATES:
        raise settings.unsupported("scoring_func", method, ", ".join(_GATES))
    groups = settings.whole("n_group") or 1
    if groups > 1 and settings.config.get("topk_method", "noaux_tc") != "noaux_tc":
        raise settings.unsupported("topk_method", settings.config["topk_method"], "noaux_tc, or one group")
    if settings.whole("moe_layer_freq", 1) != 1:
        raise settings.unsupported("moe_layer_freq", settings.config["moe_layer_freq"], "1")
    return {
        "expert_gating_func": _GATES[method],
        "expert_weights_norm": settings.config.get("norm_topk_prob") is True,
        "expert_weights_scale": settings.number("routed_scaling_factor") or 1.0,
        "expert_group_count": groups,
        "expert_group_used_count": settings.whole("topk_group") or groups,
        "leading_dense_block_count": settings.whole("first_k_dense_replace") or 0,
    }


def _glm4_moe(settings: Settings) -> Keys:
    return _experts(settings) | _glm4(settings)


def _deepseek(settings: Settings) -> Keys:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent, plain, turned, value = (settings.whole(name) or 0 for name in names)
    for name, size in zip(names, (latent, plain, turned, value), strict=True):
        if size < 1:
            raise settings.unsupported(name, size, "a positive number of channels")
    found: Keys = _experts(settings, "softmax" if settings.kind == "deepseek_v2" else "sigmoid") | {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + turned,
        "attention.value_length": latent,
        "attention.key_length_mla": plain + turned,
        "attention.value_length_mla": value,
        "rope.dimension_count": turned,
    }
    share = settings.number("mscale_all_dim", settings.scaling())
    return found | ({"rope.scaling.yarn_log_multiplier": _YARN_SHARE * share} if share else {})


def _gpt_oss(settings: Settings) -> Keys:
    for key, only in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if (value := settings.number(key)) not in (None, only):
            raise settings.unsupported(key, value, str(only))
    return _windows(settings, period=2, window=128)


def _smollm3(settings: Settings) -> Keys:
    given = settings.config.get("no_rope_layers")
    if given not in (None, [int((i + 1) % 4 != 0) for i in range(settings.layers)]):
        raise settings.unsupported("no_rope_layers", given, "a 0 for every fourth layer")
    if settings.whole("no_rope_layer_interval", 4) != 4:
        raise settings.unsupported("no_rope_layer_interval", settings.config["no_rope_layer_interval"], "4")
    return settings.window()


def _olmo3(settings: Settings) -> Keys:
    if settings.rope_base(SLIDING) != settings.rope_base():
        raise settings.unsupported("rope_parameters", settings.rope_base(SLIDING), "the same rope_theta in all layers")
    if (near := settings.scaling(SLIDING)) is not settings.scaling() and near.get("rope_type") not in (None, "default"):
        raise settings.unsupported("rope_parameters", near["rope_type"], "default for sliding_attention")
    return _windows(settings, period=4, window=4096)


def _windows(settings: Settings, period: int, window: int) -> Keys:
    """Where the folder does not say it, one layer of each ``period`` has no window."""
    kinds = settings.config.get("layer_types")
    kinds = kinds or [SLIDING if (i + 1) % period else FULL for i in range(settings.layers)]
    return {
        "attention.sliding_window": settings.whole("sliding_window") or window,
        "attention.sliding_window_pattern": layers_of(settings, kinds, SLIDING),
    }


PARTICULAR: Mapping[str, Callable[[Settings], Keys]] = {
    "phi3": _phi3,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen_next,
    "mamba2": _mamba2,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "gpt_oss": _gpt_oss,
    "smollm3": _smollm3,
    "olmo3": _olmo3,
}
"""By ``model_type``."""
