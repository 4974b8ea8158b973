"""Published tensors under the names and in the forms that mlx-lm writes: its own ``sanitize``, family by family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from tests.converted.writing import Stored, store

Arrays = dict[str, np.ndarray]
GROUP, BITS = 32, 8
NORMS = ("input_layernorm", "post_attention_layernorm", "model.norm", "q_norm", "k_norm")
EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\.(\w+)\.weight")


def as_mlx(kind: str, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Arrays:
    found: Arrays = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, weights in tensors.items():
        if expert := EXPERT.fullmatch(name):
            stacks.setdefault(f"{expert[1]}.switch_mlp.{expert[3]}.weight", {})[int(expert[2])] = weights
        elif kind.startswith("gemma4"):
            found |= _gemma4(name, weights)
        elif kind == "gpt_oss" and ".experts." in name:
            found |= _gpt_oss(name, weights)
        elif "conv1d.weight" in name:
            found[name] = np.moveaxis(weights, 2, 1)
        elif kind == "deepseek_v3" and "kv_b_proj" in name:
            heads = weights.reshape(config["num_attention_heads"], -1, weights.shape[1])
            base = name.removesuffix("kv_b_proj.weight")
            found[f"{base}embed_q.weight"] = heads[:, : config["qk_nope_head_dim"]].swapaxes(1, 2)
            found[f"{base}unembed_out.weight"] = heads[:, config["qk_nope_head_dim"] :]
        elif kind == "qwen3_next" and name.removesuffix(".weight").endswith(NORMS) and weights.ndim == 1:
            found[name] = weights + np.float32(1)
        else:
            found[name] = weights
    return found | {name: np.stack([rows[i] for i in range(len(rows))]) for name, rows in stacks.items()}


def _gemma4(name: str, weights: np.ndarray) -> Arrays:
    name = f"language_model.{name}"
    if name.endswith(".experts.gate_up_proj"):
        base = name.removesuffix("gate_up_proj") + "switch_glu."
        halves = np.split(weights, 2, axis=-2)
        return {f"{base}{part}_proj.weight": half for part, half in zip(("gate", "up"), halves, strict=True)}
    return {name.replace("experts.down_proj", "experts.switch_glu.down_proj.weight"): weights}


def _gpt_oss(name: str, weights: np.ndarray) -> Arrays:
    """Written from floats: the published inputs lie first."""
    if name.endswith("_bias"):
        name = name.replace("_bias", ".bias")
    else:
        name, weights = f"{name}.weight", weights.swapaxes(1, 2)
    if "gate_up_proj" not in name:
        return {name: weights}
    turns = weights[:, 0::2], weights[:, 1::2]
    return {name.replace("gate_up", part): each for part, each in zip(("gate", "up"), turns, strict=True)}


def quantized(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Stored], Arrays]:
    """Matrices in affine groups, as MLX stores them; and what every tensor is worth then."""
    stored: dict[str, Stored] = {}
    worth: Arrays = {}
    for name, weights in arrays.items():
        module = name.removesuffix(".weight")
        if weights.ndim < 2 or module == name or weights.shape[-1] % GROUP or "conv1d" in name:
            stored[name], worth[name] = store("F32", weights), weights
            continue
        parts = mx.quantize(mx.array(weights), group_size=GROUP, bits=BITS)
        stored[name] = store("U32", np.array(parts[0]))
        stored |= {
            f"{module}.{end}": store("F32", np.array(each))
            for end, each in zip(("scales", "biases"), parts[1:], strict=True)
        }
        worth[name] = np.array(mx.dequantize(*parts, group_size=GROUP, bits=BITS))
    return stored, worth
