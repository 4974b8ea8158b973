"""A float32 forward pass over a Hugging Face checkpoint in numpy, from the published model code: halves are rotated.

Shares nothing with ``tests/oracle.py``, which reads GGUF and its conventions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def read_safetensors(path: Path) -> dict[str, Floats]:
    """All tensors of a float32 file, checked to fill it without gaps."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    header.pop("__metadata__")
    tensors, end = {}, 0
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
        flat = np.frombuffer(data, "<f4", math.prod(entry["shape"]), start + entry["data_offsets"][0])
        tensors[name] = flat.reshape(entry["shape"]).astype(np.float64)
    assert start % 8 == 0
    assert start + end == len(data)
    return tensors


class Published:
    """``logits(tokens)`` is (L, V)."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights = read_safetensors(folder / "model.safetensors")
        self.used: set[str] = set()
        self.gemma = self.config["model_type"] == "gemma3_text"

    def weight(self, name: str) -> Floats:
        self.used.add(name)
        return self.weights[name]

    def norm(self, x: Floats, name: str) -> Floats:
        scaled = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return np.asarray(scaled * (self.weight(f"{name}.weight") + (1 if self.gemma else 0)))

    def linear(self, x: Floats, name: str) -> Floats:
        y = x @ self.weight(f"{name}.weight").T
        return np.asarray(y + self.weight(f"{name}.bias") if f"{name}.bias" in self.weights else y)

    def logits(self, tokens: Sequence[int]) -> Floats:
        embedding = self.weight("model.embed_tokens.weight")
        x = embedding[list(tokens)] * (math.sqrt(self.config["hidden_size"]) if self.gemma else 1)
        for index in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{index}"
            mixed = self.attention(self.norm(x, f"{at}.input_layernorm"), index)
            x = x + (self.norm(mixed, f"{at}.post_attention_layernorm") if self.gemma else mixed)
            before = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
            mlp = self.feed_forward(self.norm(x, f"{at}.{before}"), f"{at}.mlp")
            x = x + (self.norm(mlp, f"{at}.post_feedforward_layernorm") if self.gemma else mlp)
        head = embedding if self.config["tie_word_embeddings"] else self.weight("lm_head.weight")
        return np.asarray(self.norm(x, "model.norm") @ head.T)

    def feed_forward(self, x: Floats, at: str) -> Floats:
        gate = self.linear(x, f"{at}.gate_proj")
        if self.gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * self.linear(x, f"{at}.up_proj"), f"{at}.down_proj")

    def attention(self, x: Floats, index: int) -> Floats:
        config, at, count = self.config, f"model.layers.{index}.self_attn", len(x)
        size = config["head_dim"]
        q, k, v = (self.linear(x, f"{at}.{n}_proj").reshape(count, -1, size).swapaxes(0, 1) for n in "qkv")
        if f"{at}.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{at}.q_norm"), self.norm(k, f"{at}.k_norm")
        sliding = self.gemma and (index + 1) % config["sliding_window_pattern"] != 0
        frequencies = self.frequencies(sliding)
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        groups = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = np.repeat(k, groups, axis=0), np.repeat(v, groups, axis=0)
        scores = q @ k.swapaxes(1, 2) * config.get("query_pre_attn_scalar", size) ** -0.5
        distance = np.arange(count)[:, None] - np.arange(count)
        seen = (distance >= 0) & (distance < config["sliding_window"] if sliding else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
        return self.linear(mixed.swapaxes(0, 1).reshape(count, -1), f"{at}.o_proj")

    def frequencies(self, sliding: bool) -> Floats:
        size = self.config["head_dim"]
        base = self.config["rope_local_base_freq"] if sliding else self.config["rope_theta"]
        frequencies = np.asarray(base ** -(np.arange(0, size, 2) / size))
        scaling = None if sliding else self.config.get("rope_scaling")
        if scaling is None:
            return frequencies
        if scaling["rope_type"] == "linear":
            return np.asarray(frequencies / scaling["factor"])
        assert scaling["rope_type"] == "llama3"
        return np.array([_llama3(frequency, scaling) for frequency in frequencies])


def _llama3(frequency: float, scaling: dict[str, Any]) -> float:
    """Llama 3.1's ``apply_scaling``, one frequency at a time."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, wavelength = scaling["original_max_position_embeddings"], 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return float(frequency / scaling["factor"])
    smooth = (original / wavelength - low) / (high - low)
    return float((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)


def rotate(x: Floats, frequencies: Floats) -> Floats:
    """x * cos + rotate_half(x) * sin. x: (H, L, D)."""
    angles = np.outer(np.arange(x.shape[1]), np.concatenate([frequencies, frequencies]))
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return np.asarray(x * np.cos(angles) + turned * np.sin(angles))
