"""Tiny random models of the larger families: what each has that ``tests.tiny``'s Llama has not, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.makers import (
    DEEPSEEK2,
    GEMMA4,
    MAMBA2,
    NARROW,
    QWEN3NEXT,
    SIZE,
    SPARSE,
    WINDOW,
    YARN,
    Maker,
    Tensors,
    deepseek2,
    deepseek2_lite,
    gemma4,
    gemma4_sparse,
    gemma4_top,
    glm4,
    glm4moe,
    gpt_oss,
    long_factors,
    mamba2,
    olmo2,
    phi3,
    post_norms,
    qwen3next,
)
from tests.tiny import tiny_gguf


@dataclass(frozen=True)
class Family:
    """``block`` gives the tensors of a layer that are added, replaced or (None) dropped; keys start with a dot."""

    block: Callable[[Maker, int], Tensors] = lambda make, layer: {}
    keys: Mapping[str, Any] = field(default_factory=dict)
    top: Callable[[Maker], Tensors] = lambda make: {}
    layers: int = 3
    tied: bool = True


FAMILIES: dict[str, Family] = {
    "mistral3": Family(),
    "qwen3moe": Family(lambda make, layer: make.experts() | make.qk_norms(), SPARSE),
    "glm4": Family(glm4, {".rope.dimension_count": SIZE // 2}),
    "glm4moe": Family(
        glm4moe,
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
        deepseek2,
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
    "deepseek2 lite": Family(deepseek2_lite, DEEPSEEK2, layers=26),
    "gpt-oss": Family(gpt_oss, SPARSE | WINDOW, tied=False),
    "phi3": Family(
        phi3,
        {
            ".rope.dimension_count": 3 * SIZE // 4,
            ".rope.scaling.type": "longrope",
            ".rope.scaling.original_context_length": 64,
            ".rope.scaling.attn_factor": 1.2,
            ".attention.sliding_window": 7,
            "general.name": "tiny",  # llama.cpp wants tokens of a model that says it is a phi3
        },
        long_factors,
        tied=False,
    ),
    "gemma2": Family(post_norms, WINDOW | {".attn_logit_softcapping": 5.0, ".final_logit_softcapping": 3.0}, layers=4),
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
    "olmo2": Family(olmo2, layers=5, tied=False),
    "gemma4": Family(gemma4, GEMMA4, gemma4_top, layers=6),
    "gemma4 sparse": Family(
        gemma4_sparse,
        SPARSE | GEMMA4 | {".embedding_length_per_layer_input": 0, ".attention.shared_kv_layers": 0},
        lambda make: {"rope_freqs.weight": gemma4_top(make)["rope_freqs.weight"]},
        layers=6,
    ),
    "mamba2": Family(mamba2, MAMBA2),
    "qwen3next": Family(qwen3next, QWEN3NEXT, layers=5),
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
    "phi3, yarn beside its factors": ("phi3", YARN),
    "phi3, no type of scaling": ("phi3", {".rope.scaling.type": None}),
    "gemma2": ("gemma2", {}),
    "granite": ("granite", {}),
    "granite, the least": (
        "granite",
        {".residual_scale": None, ".embedding_scale": None, ".attention.scale": None, ".rope.scaling.finetuned": True},
    ),
    "smollm3": ("smollm3", YARN),
    "gemma4": ("gemma4", {}),
    "gemma4 sparse": ("gemma4 sparse", {}),
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
