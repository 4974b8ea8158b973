"""What the ``config.json`` of Gemma 2, 3 and 4 says, as GGUF keys without their prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.kinds import FULL, SLIDING, Keys, head_size, layers_of

if TYPE_CHECKING:
    from edgeinfer.converted.settings import Settings


_LAYERS_OF_GEMMA2_27B, _LAYERS_OF_GEMMA3_27B = 46, 62
"""The one size of each whose queries are scaled by its embedding's share of a head."""


def gemma2(settings: Settings) -> Keys:
    kinds = settings.config.get("layer_types")
    if kinds not in (None, [FULL if i % 2 else SLIDING for i in range(settings.layers)]):
        raise settings.unsupported("layer_types", kinds, "sliding and full attention in turn")
    _check_scale(settings, _LAYERS_OF_GEMMA2_27B)
    return {"attention.sliding_window": settings.whole("sliding_window") or 4096}


def gemma3(settings: Settings) -> Keys:
    _check_scale(settings, _LAYERS_OF_GEMMA3_27B)
    period = settings.config.get("sliding_window_pattern", 6)
    if (kinds := settings.config.get("layer_types")) is not None:
        period = _period(kinds)
    if type(period) is not int or period < 1:
        raise settings.unsupported("layer_types", kinds, "full attention at a fixed period")
    near = settings.number("rope_local_base_freq")
    if settings.scaling(SLIDING) is not settings.scaling():
        near = settings.number("rope_theta", settings.scaling(SLIDING)) or near
    return {
        "attention.sliding_window": settings.whole("sliding_window"),
        "attention.sliding_window_pattern": period,
        "rope.freq_base_swa": near,
    }


def _check_scale(settings: Settings, layers_of_27b: int) -> None:
    """Of the queries: GGUF has no key that would say another one."""
    usual = float(head_size(settings))
    if settings.layers == layers_of_27b:
        usual = (settings.whole("hidden_size") or 0) / settings.heads
    if (scalar := settings.number("query_pre_attn_scalar")) not in (None, usual):
        raise settings.unsupported("query_pre_attn_scalar", scalar, f"{usual:g}")


def _period(kinds: object) -> int:
    """Every how many layers attention is full; 0 where they follow no such rule."""
    if not isinstance(kinds, list) or FULL not in kinds:
        return len(kinds) + 1 if isinstance(kinds, list) and set(kinds) == {SLIDING} else 0
    period = kinds.index(FULL) + 1
    return period if kinds == [SLIDING if (i + 1) % period else FULL for i in range(len(kinds))] else 0


def gemma4(settings: Settings) -> Keys:
    """Layers with a window and without one differ in heads, in their size, and in how they turn."""
    kinds = layers_of(settings, settings.config.get("layer_types"), SLIDING)
    near, far = head_size(settings), _far_head(settings)
    inner, shared = settings.whole("intermediate_size"), settings.whole("num_kv_shared_layers") or 0
    wide = settings.config.get("use_double_wide_mlp") is True
    heads = _of_far_layers(settings, "num_key_value_heads", "num_global_key_value_heads") or settings.kv_heads
    share = settings.number("partial_rotary_factor", settings.scaling(SLIDING)) or 1.0
    sparse = settings.config.get("enable_moe_block") is True
    found: Keys = {
        "attention.sliding_window": settings.whole("sliding_window"),
        "attention.sliding_window_pattern": kinds,
        "attention.shared_kv_layers": shared,
        "attention.head_count_kv": [settings.kv_heads if each else heads for each in kinds],
        "attention.key_length": far,
        "attention.value_length": far,
        "attention.key_length_swa": near,
        "attention.value_length_swa": near,
        "rope.dimension_count": far,
        "rope.dimension_count_swa": int(near * share),
        "rope.freq_base_swa": settings.rope_base(SLIDING),
        "expert_used_count": settings.whole("top_k_experts"),
        "expert_feed_forward_length": settings.whole("expert_intermediate_size")
        or settings.whole("moe_intermediate_size"),
    }
    if wide and inner:
        found["feed_forward_length"] = [inner * (1 + (i >= len(kinds) - shared)) for i in range(len(kinds))]
    absent = ("expert_count", "expert_used_count", "expert_feed_forward_length")
    return found | ({} if sparse else dict.fromkeys(absent))


def _far_head(settings: Settings) -> int:
    return _of_far_layers(settings, "head_dim", "global_head_dim") or head_size(settings)


def _of_far_layers(settings: Settings, own: str, name: str) -> int | None:
    """A setting of the layers without a window: newer folders name it layer by layer."""
    rows = settings.config.get("per_layer_config")
    if (found := settings.whole(name)) is not None or not isinstance(rows, dict):
        return found
    values = {settings.whole(own, source=row) for row in rows.values() if isinstance(row, dict) and own in row}
    if len(values) > 1:
        raise settings.unsupported("per_layer_config", own, "one value for all layers without a window")
    return next(iter(values), None)


def proportional_factors(settings: Settings) -> dict[str, NDArray[np.float32]]:
    """Gemma 4's: pairs of the first part of a head turn, by frequencies of the whole head; others stand still."""
    pairs, share = _far_head(settings) // 2, settings.number("partial_rotary_factor", settings.scaling()) or 1.0
    if not 0 < share <= 1:
        raise settings.unsupported("partial_rotary_factor", share, "a share of a head")
    return {"rope_freqs.weight": np.where(np.arange(pairs) < int(share * pairs), 1, 1e30).astype(np.float32)}
