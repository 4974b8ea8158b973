"""What the ``config.json`` of single families says that others have no word for, as GGUF keys without their prefix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgeinfer.converted.settings import Settings

Keys = dict[str, Any]
_GATES = {"softmax": 1, "sigmoid": 2}  # ``expert_gating_func``, in the numbers of llama.cpp
_YARN_SHARE = 0.1  # llama.cpp stores ``mscale_all_dim`` times this


def head_size(settings: Settings) -> int:
    """Channels of a head. Raises UnsupportedModel where neither they nor what they follow from is said."""
    size, hidden, heads = (settings.whole(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    found = size or (hidden or 0) // (heads or 1)
    if not 2 <= found <= 1 << 14:
        raise settings.unsupported("head_dim", size, "2 to 16384")
    return found


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


def _experts(settings: Settings) -> Keys:
    """The routing of DeepSeek's kind."""
    method = settings.config.get("scoring_func", "sigmoid")
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
    found: Keys = _experts(settings) | {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + turned,
        "attention.value_length": latent,
        "attention.key_length_mla": plain + turned,
        "attention.value_length_mla": value,
        "rope.dimension_count": turned,
    }
    share = settings.number("mscale_all_dim", settings.scaling())
    return found | ({"rope.scaling.yarn_log_multiplier": _YARN_SHARE * share} if share else {})


def _gemma2(settings: Settings) -> Keys:
    kinds, layers = settings.config.get("layer_types"), settings.whole("num_hidden_layers") or 0
    usual = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    if kinds not in (None, usual):
        raise settings.unsupported("layer_types", kinds, "sliding and full attention in turn")
    scalar, per_head = settings.number("query_pre_attn_scalar"), head_size(settings)
    hidden, heads = settings.whole("hidden_size") or 0, settings.whole("num_attention_heads") or 1
    if scalar not in (None, hidden / heads if layers == _LAYERS_OF_27B else per_head):
        raise settings.unsupported("query_pre_attn_scalar", scalar, str(per_head))
    return {"attention.sliding_window": settings.whole("sliding_window") or 4096}


_LAYERS_OF_27B = 46  # of Gemma 2: the one size whose queries are scaled by its embedding's share of a head


def _gpt_oss(settings: Settings) -> Keys:
    limit = settings.number("swiglu_limit")
    if limit not in (None, 7.0):
        raise settings.unsupported("swiglu_limit", limit, "7.0")
    return _olmo3(settings, period=2, window=128)


def _smollm3(settings: Settings) -> Keys:
    given, layers = settings.config.get("no_rope_layers"), settings.whole("num_hidden_layers") or 0
    if given not in (None, [int((i + 1) % 4 != 0) for i in range(layers)]):
        raise settings.unsupported("no_rope_layers", given, "a 0 for every fourth layer")
    if settings.whole("no_rope_layer_interval", 4) != 4:
        raise settings.unsupported("no_rope_layer_interval", settings.config["no_rope_layer_interval"], "4")
    return {}


def _olmo3(settings: Settings, period: int = 4, window: int = 4096) -> Keys:
    kinds, layers = settings.config.get("layer_types"), settings.whole("num_hidden_layers") or 0
    kinds = kinds or ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {"sliding_attention", "full_attention"}:
        raise settings.unsupported("layer_types", kinds, "sliding_attention or full_attention for each layer")
    return {
        "attention.sliding_window": settings.whole("sliding_window") or window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }


PARTICULAR: Mapping[str, Callable[[Settings], Keys]] = {
    "phi3": _phi3,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma2": _gemma2,
    "gpt_oss": _gpt_oss,
    "smollm3": _smollm3,
    "olmo3": _olmo3,
}
"""By ``model_type``."""
