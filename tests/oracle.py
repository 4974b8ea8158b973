"""A forward pass in numpy float32, written from the published formulas alone: nothing is shared with the package.

Whole sequences, no cache, one attention matrix a head: slow and plain. Weights are read by ``gguf`` or ggml.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.quant.codec import BY_GGML_ID
from tests.oracle_ggml import decoded

Floats = NDArray[np.float32]
INTERLEAVED = ("llama",)  # architectures whose rotated pairs lie side by side in GGUF


class Oracle:
    """A model of one of the four architectures; ``logits(tokens)`` is (L, V)."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        skipped = (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.scores",
            "tokenizer.ggml.token_type",
        )
        self.keys: dict[str, Any] = {
            name: field.contents() for name, field in reader.fields.items() if name not in skipped
        }
        self.architecture = self.keys["general.architecture"]
        self.weights: dict[str, Floats] = {
            tensor.name: np.asarray(decoded(BY_GGML_ID[tensor.tensor_type], tensor.data), np.float32).reshape(
                tuple(int(size) for size in reversed(tensor.shape))
            )
            for tensor in reader.tensors
        }
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.head_dim = self.key("attention.key_length", self.key("embedding_length") // self.heads)
        self.eps = np.float32(self.key("attention.layer_norm_rms_epsilon"))

    def key(self, name: str, default: Any = None) -> Any:
        return self.keys.get(f"{self.architecture}.{name}", default)

    def logits(self, tokens: Sequence[int]) -> Floats:
        gemma = self.architecture == "gemma3"
        embedding = self.weights["token_embd.weight"]
        x = embedding[list(tokens)]
        if gemma:
            x = x * np.float32(math.sqrt(x.shape[-1]))
        for layer in range(self.key("block_count")):
            part = self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer)
            x = x + (self.norm(part, f"blk.{layer}.post_attention_norm") if gemma else part)
            part = self.feed_forward(self.norm(x, f"blk.{layer}.ffn_norm"), layer)
            x = x + (self.norm(part, f"blk.{layer}.post_ffw_norm") if gemma else part)
        out = self.norm(x, "output_norm") @ self.weights.get("output.weight", embedding).T
        cap = self.key("final_logit_softcapping", 0.0)
        return np.tanh(out / np.float32(cap)) * np.float32(cap) if cap else out

    def norm(self, x: Floats, name: str) -> Floats:
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + self.eps) * self.weights[f"{name}.weight"])

    def linear(self, x: Floats, name: str) -> Floats:
        y = x @ self.weights[f"{name}.weight"].T
        return np.asarray(y + self.weights.get(f"{name}.bias", np.float32(0)))

    def feed_forward(self, x: Floats, layer: int) -> Floats:
        gate, up = (self.linear(x, f"blk.{layer}.ffn_{name}").astype(np.float64) for name in ("gate", "up"))
        if self.architecture == "gemma3":
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear((gate * up).astype(np.float32), f"blk.{layer}.ffn_down")

    def attention(self, x: Floats, layer: int) -> Floats:
        count, size = len(x), self.head_dim
        q, k, v = (self.linear(x, f"blk.{layer}.attn_{name}").reshape(count, -1, size).swapaxes(0, 1) for name in "qkv")
        if f"blk.{layer}.attn_q_norm.weight" in self.weights:
            q, k = self.norm(q, f"blk.{layer}.attn_q_norm"), self.norm(k, f"blk.{layer}.attn_k_norm")
        local = self.architecture == "gemma3" and (layer + 1) % self.key("attention.sliding_window_pattern", 6) != 0
        q, k = self.rotate(q, local), self.rotate(k, local)
        k, v = (np.repeat(each, self.heads // self.kv_heads, axis=0) for each in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.float32(math.sqrt(size))
        cap = self.key("attn_logit_softcapping", 0.0)
        if cap:
            scores = np.tanh(scores / np.float32(cap)) * np.float32(cap)
        distance = np.arange(count)[:, None] - np.arange(count)
        window = self.key("attention.sliding_window", 0) if local or self.architecture == "llama" else 0
        seen = (distance >= 0) & ((distance < window) if window else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
        return self.linear(mixed.swapaxes(0, 1).reshape(count, -1).astype(np.float32), f"blk.{layer}.attn_output")

    def rotate(self, x: Floats, local: bool) -> Floats:
        """Pairs of channels as complex numbers, turned by position times frequency. x: (H, L, D)."""
        dims = self.key("rope.dimension_count", self.head_dim)
        angles, magnitude = self.angles(dims, local)
        turn = np.exp(1j * np.outer(np.arange(x.shape[1]), angles)) * magnitude
        pairs = x[..., :dims].astype(np.float64)
        if self.architecture in INTERLEAVED:
            turned = (pairs[..., 0::2] + 1j * pairs[..., 1::2]) * turn
            flat = np.stack([turned.real, turned.imag], axis=-1).reshape(pairs.shape)
        else:
            turned = (pairs[..., : dims // 2] + 1j * pairs[..., dims // 2 :]) * turn
            flat = np.concatenate([turned.real, turned.imag], axis=-1)
        return np.concatenate([flat, x[..., dims:]], axis=-1).astype(np.float32)

    def angles(self, dims: int, local: bool) -> tuple[NDArray[np.float64], float]:
        """Radians a token of each pair, and what the rotated channels are multiplied by."""
        base = self.key("rope.freq_base_swa", 10000.0) if local else self.key("rope.freq_base", 10000.0)
        theta = 1 / base ** (np.arange(0, dims, 2) / dims)
        if local:
            return theta, 1.0
        if "rope_freqs.weight" in self.weights:
            theta = theta / self.weights["rope_freqs.weight"]
        factor = self.key("rope.scaling.factor", 1.0)
        scaled = self.key("rope.scaling.attn_factor", 1.0)
        if self.key("rope.scaling.type", "linear") == "linear":
            return theta / factor, scaled
        original = self.key("rope.scaling.original_context_length")

        def border(rotations: float) -> float:
            return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(0, math.floor(border(32))), min(dims - 1, math.ceil(border(1)))
        kept = 1 - np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
        return theta * kept + theta / factor * (1 - kept), scaled * (0.1 * math.log(factor) + 1)
