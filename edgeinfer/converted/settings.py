"""``config.json`` as the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.families import FAMILIES, Family
from edgeinfer.converted.gemmas import proportional_factors
from edgeinfer.converted.kinds import FULL
from edgeinfer.converted.particular import PARTICULAR, long_factors
from edgeinfer.errors import CorruptFile, UnsupportedModel
from edgeinfer.formats.cursor import shown

_INTEGERS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "mask_token_id": "diffusion.mask_token_id",
    "block_size": "diffusion.block_size",
}
_FLOATS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
_NEUTRAL = {  # settings that change the computation, and the only values that are supported
    "mlp_bias": (False,),
    "no_rope_layers": (),
    "partial_rotary_factor": (1, 1.0),
    "use_bidirectional_attention": (False,),
}
_COUNTS = (
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "embedding_length_per_layer_input",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
)
_LONG = ("longrope", "su")
_MINISTRAL = ("nemotron_labs_diffusion", "ministral3")
_USUAL_YARN = {"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta"}
_PUBLISHED_YARN = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
_LEAST_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class Settings:
    """Typed access to ``config.json``; what is wrong raises CorruptFile or UnsupportedModel with the key."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        self.path = folder / "config.json"
        text = config.get("text_config")
        own = {**config, **text} if isinstance(text, dict) else config
        kind = own.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise self.unsupported("model_type", kind, ", ".join(FAMILIES))
        self.family: Family = FAMILIES[kind]
        self.kind = kind
        self.config: Mapping[str, Any] = {**self.family.usual, **own}

    @property
    def layers(self) -> int:
        """Of the main model, without those that predict further tokens."""
        return self.whole("num_hidden_layers") or 0

    @property
    def heads(self) -> int:
        return self.whole("num_attention_heads") or 1

    @property
    def kv_heads(self) -> int:
        return self.whole("num_key_value_heads") or self.heads

    def whole(self, key: str, default: int | None = None, source: Mapping[str, Any] | None = None) -> int | None:
        value = (self.config if source is None else source).get(key, default)
        if value is None or type(value) is int:
            return value
        raise CorruptFile(self.path, key, None, f"{value!r:.40}; expected a whole number")

    def number(self, key: str, source: Mapping[str, Any] | None = None) -> float | None:
        value = (self.config if source is None else source).get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise CorruptFile(self.path, key, None, f"{value!r:.40}; expected a number")
        return float(value)

    def unsupported(self, key: str, value: object, supported: str) -> UnsupportedModel:
        found = shown(f"{value!r}")
        return UnsupportedModel(f"{self.path.name}: {key}: {found}; supported: {supported}", self.path, key, value)

    def metadata(self) -> dict[str, Any]:
        """Keys of the architecture. Raises what the class says."""
        prefix = self.family.architecture
        self._check_neutral()
        found: dict[str, Any] = {}
        for key, name in _INTEGERS.items():
            if (value := self.whole(key)) is not None:
                found[f"{prefix}.{name}"] = value
        for key, name in _FLOATS.items():
            if (number := self.number(key)) is not None:
                found[f"{prefix}.{name}"] = number
        if (size := self.whole("head_dim")) is not None:
            found |= {f"{prefix}.attention.key_length": size, f"{prefix}.attention.value_length": size}
        for key, name in self.family.numbers.items():
            value = self.config.get(key)
            if value is not None:
                found[f"{prefix}.{name}"] = self.whole(key) if name in _COUNTS else self.number(key)
        if not self.family.experts:
            for key in ("expert_count", "expert_used_count", "expert_feed_forward_length"):
                found.pop(f"{prefix}.{key}", None)
        own = PARTICULAR[self.kind](self) if self.kind in PARTICULAR else self.window()
        found |= {f"{prefix}.{key}": value for key, value in (self._rope() | own).items()}
        return {"general.architecture": prefix} | {key: value for key, value in found.items() if value is not None}

    def rope_type(self) -> object:
        scaling = self.scaling()
        return scaling.get("rope_type", scaling.get("type", "default"))

    def rope_base(self, kind: str = FULL) -> float | None:
        """Of layers of a kind, in either place where it may stand."""
        found = self.number("rope_theta", self.scaling(kind))
        return self.number("rope_theta") if found is None else found

    def frequencies(self) -> dict[str, NDArray[np.float32]]:
        """Factors of each rotated pair as GGUF's tensors, (D / 2,) each; most models have none."""
        if self.kind == "phi3" and self.rope_type() in _LONG:
            return long_factors(self)
        if self.rope_type() == "proportional":
            return proportional_factors(self)
        return {"rope_freqs.weight": self._llama3()} if self.rope_type() == "llama3" else {}

    def _llama3(self) -> NDArray[np.float32]:
        """By the formula of Llama 3's own ``apply_scaling``."""
        scaling = self.scaling()
        values = [self.number(key, scaling) for key in _LEAST_LLAMA3]
        hidden, heads = self.whole("hidden_size"), self.whole("num_attention_heads")
        size = self.whole("head_dim") or (hidden or 0) // (heads or 1)
        base = self.rope_base() or 10000.0
        if None in values or size < 2 or size > 1 << 14 or base < 1:
            raise self.unsupported("rope_scaling", scaling, f"llama3 with {', '.join(_LEAST_LLAMA3)}")
        factor, low, high, original = (value or 0.0 for value in values)
        if factor <= 0 or high <= low:
            raise self.unsupported("rope_scaling", scaling, "a positive factor, high_freq_factor above low_freq_factor")
        turns = original / (2 * math.pi * base ** (np.arange(size // 2) / (size // 2)))
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

    def _check_neutral(self) -> None:
        act = self.config.get("hidden_act", self.config.get("hidden_activation"))
        if act is not None and act not in self.family.activation:
            raise self.unsupported("hidden_act", act, ", ".join(self.family.activation))
        for key, values in _NEUTRAL.items():
            if key in self.config and key not in self.family.own and self.config[key] not in (None, [], *values):
                raise self.unsupported(key, self.config[key], ", ".join(map(str, values)) or "none")

    def scaling(self, kind: str = FULL) -> Mapping[str, Any]:
        """How positions turn heads; newer folders say it for each kind of layer."""
        found = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        if isinstance(found, dict):
            found = found.get(kind, found)
        if not isinstance(found, dict):
            raise self.unsupported("rope_scaling", found, "an object")
        return found

    def _rope(self) -> dict[str, Any]:
        scaling = self.scaling()
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        found: dict[str, Any] = {}
        if (base := self.rope_base()) is not None:
            found["rope.freq_base"] = base
        own = {"phi3": _LONG, "gemma4_text": ("proportional",)}.get(self.kind, ())
        if kind in ("default", "llama3", *own):
            return found
        if kind not in ("linear", "yarn"):
            raise self.unsupported("rope_scaling", kind, "default, linear, yarn, llama3")
        factor = self.number("factor", scaling)
        if factor is None or factor <= 0:
            raise self.unsupported("rope_scaling", scaling, "a positive factor")
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
        if kind == "yarn":
            original = scaling.get("original_max_position_embeddings", self.whole("max_position_embeddings"))
            if type(original) is not int:
                raise self.unsupported("rope_scaling", original, "a whole original_max_position_embeddings")
            found["rope.scaling.original_context_length"] = original
            if self.kind in _MINISTRAL:
                return found | self._ministral(scaling)
            others = scaling.keys() - _USUAL_YARN
            others -= {key for key in others if scaling[key] == _PUBLISHED_YARN.get(key)}
            others -= {"truncate"} if self.family.architecture == "gpt-oss" else set()  # llama.cpp always rounds
            if self.family.architecture == "deepseek2" and scaling.get("mscale") == scaling.get("mscale_all_dim"):
                others -= {"mscale", "mscale_all_dim"}
            if others:
                raise self.unsupported("rope_scaling", sorted(others)[0], "yarn with its published values")
        return found

    def _ministral(self, scaling: Mapping[str, Any]) -> dict[str, Any]:
        """What Ministral 3 sets of YaRN, and the growth of its queries."""
        known = {
            "beta_fast": "rope.scaling.yarn_beta_fast",
            "beta_slow": "rope.scaling.yarn_beta_slow",
            "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "llama_4_scaling_beta": "attention.temperature_scale",
        }
        usual = {"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta", "mscale"}
        if others := scaling.keys() - usual - known.keys():
            raise self.unsupported("rope_scaling", sorted(others)[0], ", ".join(known))
        if scaling.get("mscale", 1) not in (1, scaling.get("mscale_all_dim")):
            raise self.unsupported("rope_scaling", scaling["mscale"], "mscale of 1, or as mscale_all_dim")
        values = {name: self.number(key, scaling) for key, name in known.items()}
        return {name: value for name, value in values.items() if value is not None}

    def window(self) -> dict[str, Any]:
        window = self.whole("sliding_window")
        if window is None or self.config.get("use_sliding_window") is False:
            return {}
        if self.kind != "mistral":
            raise self.unsupported("sliding_window", window, "none")
        return {"attention.sliding_window": window}
