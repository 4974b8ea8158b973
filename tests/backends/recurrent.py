"""A tiny random Mamba model: a state that llama.cpp cannot rewind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import tiny_gguf

LAYERS, HIDDEN, INNER, STATE, RANK, KERNEL = 2, 64, 128, 16, 4, 4


def tiny_mamba(path: Path) -> Path:
    random = np.random.default_rng(3)
    llama = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    tensors: dict[str, Any] = {}
    for layer in range(LAYERS):
        block = {f"{name}.weight": None for name in llama} | {
            "ssm_in.weight": random.standard_normal((2 * INNER, HIDDEN)) / 8,
            "ssm_conv1d.weight": random.standard_normal((INNER, KERNEL)) / 2,
            "ssm_conv1d.bias": random.standard_normal(INNER) / 10,
            "ssm_x.weight": random.standard_normal((RANK + 2 * STATE, INNER)) / 8,
            "ssm_dt.weight": random.standard_normal((INNER, RANK)) / 2,
            "ssm_dt.bias": random.standard_normal(INNER) / 10,
            "ssm_a": -np.exp(random.standard_normal((INNER, STATE)) / 2),
            "ssm_d": random.standard_normal(INNER),
            "ssm_out.weight": random.standard_normal((HIDDEN, INNER)) / 4,
        }
        tensors |= {f"blk.{layer}.{name}": weight for name, weight in block.items()}
    metadata = {
        "general.architecture": "mamba",
        "mamba.block_count": LAYERS,
        "mamba.context_length": 512,
        "mamba.embedding_length": HIDDEN,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": KERNEL,
        "mamba.ssm.inner_size": INNER,
        "mamba.ssm.state_size": STATE,
        "mamba.ssm.time_step_rank": RANK,
    }
    return tiny_gguf(path, metadata=metadata, tensors=tensors)
