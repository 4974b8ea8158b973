"""Checkpoints as other programs write them, made byte by byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import CHATML, CONTROL_TOKENS, MERGES, vocabulary

NUMPY = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "I8": "i1", "U8": "u1"}
Stored = tuple[str, np.ndarray]
"""A dtype of the format, and the numbers; BF16 and FP8 as the whole numbers of their bits."""


def store(kind: str, numbers: np.ndarray) -> Stored:
    return kind, np.ascontiguousarray(numbers, NUMPY.get(kind, "<u2" if kind == "BF16" else "u1"))


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    rows: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, numbers) in tensors.items():
        start, end = end, end + numbers.nbytes
        rows[name] = {"dtype": kind, "shape": list(numbers.shape), "data_offsets": [start, end]}
    text = json.dumps(rows).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each.tobytes() for _, each in tensors.values()))


def raw_safetensors(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
    return path


LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "vocab_size": 320,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip


def matrices(config: Mapping[str, Any] = LLAMA) -> dict[str, tuple[int, int]]:
    """Modules of a Llama's layers and their shapes."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    parts = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    layers = range(config["num_hidden_layers"])
    return {f"model.layers.{i}.{part}": shape for i in layers for part, shape in parts.items()}


def others(random: np.random.Generator, config: Mapping[str, Any] = LLAMA) -> dict[str, Stored]:
    """The tensors that nobody quantizes."""
    hidden = config["hidden_size"]
    names = [f"model.layers.{i}.{part}" for i in range(config["num_hidden_layers"])
             for part in ("input_layernorm", "post_attention_layernorm")]  # fmt: skip
    norms = {
        f"{name}.weight": store("F32", 1 + 0.1 * random.standard_normal(hidden)) for name in [*names, "model.norm"]
    }
    embedding = random.standard_normal((config["vocab_size"], hidden)) * 0.1
    return {"model.embed_tokens.weight": store("F16", embedding), **norms}


def write_folder(folder: Path, tensors: Mapping[str, Stored], config: Mapping[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, pre: Mapping[str, Any] | None = None, whole: bool = False, **config: Any) -> None:
    """The vocabulary of ``tests.tiny`` as tokenizer.json, with the rules of SmolLM2."""
    keys = vocabulary("llama")
    tokens, size = keys["tokenizer.ggml.tokens"], len(keys["tokenizer.ggml.tokens"]) - len(CONTROL_TOKENS)
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": size + i, "content": text, **flags} for i, text in enumerate(CONTROL_TOKENS)]
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": pre or {"type": "Sequence", "pretokenizers": [digits, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens[:size])}, "merges": list(MERGES),
                  "ignore_merges": whole},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(file))
    settings = {"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
