"""A GGUF file's settings and tensors by the names of the published checkpoints of its family: the way back.

Anything that ``config.json`` could not say is refused, so that nobody is given another model than the file's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.families import EXPERTS, FAMILIES, TOP
from edgeinfer.converted.publishedkeys import SAID
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile, TensorInfo
from edgeinfer.quant.codec import decode

ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma2": "gemma2",
    "gemma3": "gemma3_text", "mistral3": "ministral3", "granite": "granite", "smollm3": "smollm3", "olmo2": "olmo2",
    "glm4": "glm4",
}  # fmt: skip
"""``general.architecture`` -> ``model_type``."""

_IGNORED = ("context_length", "rope.scaling.finetuned", "rope.dimension_count", "attention.value_length", "vocab_size")
_PLAIN_YARN = ("qwen2", "qwen3", "qwen3moe", "smollm3", "olmo2", "glm4")
"""Whose YaRN has its published values alone."""
_FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class PublishedTensor:
    """One tensor on its way: ``order`` is that of its rows, empty for as they are; norms of Gemma are less by 1."""

    info: TensorInfo
    name: str
    order: NDArray[np.int64]
    less: float = 0.0

    def turned(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of weights or of blocks as the checkpoint has them."""
        return rows[self.order] if len(self.order) else rows

    def weights(self, file: GGUFFile) -> NDArray[np.float32]:
        """The numbers, in the tensor's own shape."""
        rows = decode(self.info.codec, file.blocks(self.info.name)).reshape(-1, self.info.shape[-1])
        rows = rows.reshape(-1, 1) if len(self.info.shape) == 1 else rows
        return np.asarray(self.turned(rows).reshape(self.info.shape) - np.float32(self.less), np.float32)


def published_settings(file: GGUFFile) -> dict[str, Any]:
    """``config.json``. Raises UnsupportedModel for a setting that it cannot carry."""
    config = Config.from_gguf(file)
    config.expect("general.architecture", *ARCHITECTURES)
    hidden, heads = config.read("embedding_length", int), config.read("attention.head_count", int)
    layers, head_dim = config.read("block_count", int), config.read("attention.key_length", int, hidden // heads)
    settings: dict[str, Any] = {
        "model_type": ARCHITECTURES[config.architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": config.read("feed_forward_length", int),
        "num_attention_heads": heads,
        "num_key_value_heads": config.read("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "rms_norm_eps": config.read("attention.layer_norm_rms_epsilon", float),
        "vocab_size": file.tensors["token_embd.weight"].rows,
        "max_position_embeddings": config.read("context_length", int),
        "rope_theta": config.read("rope.freq_base", float, 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    settings |= _rope_scaling(file, config, settings)
    if config.architecture in SAID:
        settings |= SAID[config.architecture](config, settings)
    settings = {key: value for key, value in settings.items() if value is not None}
    config.refuse_unread(_IGNORED)
    return settings


def _rope_scaling(file: GGUFFile, config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    if _FREQUENCIES in file.tensors:
        return {"rope_scaling": _llama3(file, settings)}
    yarn = "yarn" if config.architecture in _PLAIN_YARN else "linear"
    config.expect("rope.scaling.type", "none", "linear", yarn, None)
    factor = config.read("rope.scaling.factor", float, 1.0)
    if config.read("rope.scaling.type", str, "linear") == "yarn":
        original = config.read("rope.scaling.original_context_length", int)
        return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}}
    if config.read("rope.scaling.type", str, "linear") == "none" or factor == 1.0:
        return {}
    return {"rope_scaling": {"rope_type": "linear", "factor": factor}}


def _llama3(file: GGUFFile, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that give the file's factors, by the formula of Llama 3.1's own ``apply_scaling``."""
    info = file.tensors[_FREQUENCIES]
    stored = decode(info.codec, file.blocks(_FREQUENCIES)).reshape(-1).astype(np.float64)
    factor, low, high = float(stored.max()), _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    pairs = np.arange(len(stored)) / len(stored)
    turns = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * settings["rope_theta"] ** pairs)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise UnsupportedModel(
            f"{file.path.name}: {_FREQUENCIES} is not Llama 3's; a checkpoint could not say what it is",
            file.path,
            _FREQUENCIES,
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def published_tensors(file: GGUFFile) -> list[PublishedTensor]:
    """Every tensor but those that the settings say. Raises UnsupportedModel for one that has no place."""
    config = Config.from_gguf(file)
    family = FAMILIES[ARCHITECTURES[config.architecture]]
    names = {ours: theirs for theirs, ours in family.layer.items()}
    names |= {ours: f"mlp.switch_mlp.{theirs}" for theirs, ours in EXPERTS.items()} if family.experts else {}
    heads = config.read("attention.head_count", int)
    turned = {"attn_q": heads, "attn_k": config.read("attention.head_count_kv", int, heads)} if family.paired else {}
    return [
        PublishedTensor(
            info,
            _renamed(file, name, names),
            _halves(info, turned.get(name.split(".")[-2], 0)),
            float(family.one_plus and "norm." in name),
        )
        for name, info in file.tensors.items()
        if name != _FREQUENCIES
    ]


def _renamed(file: GGUFFile, name: str, names: Mapping[str, str]) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    module, _, kind = name.rpartition(".")
    for theirs, ours in TOP.items():
        if module == ours:
            return f"{theirs}.{kind}"
    root, _, rest = module.partition(".")
    layer, _, part = rest.partition(".")
    if root != "blk" or part not in names:
        raise UnsupportedModel(f"{file.path.name}: no checkpoint holds a tensor such as {name}", file.path, name)
    return f"model.layers.{layer}.{names[part]}.{kind}"


def _halves(info: TensorInfo, heads: int) -> NDArray[np.int64]:
    """Rows of a head from rotated pairs side by side to first halves and second halves."""
    rows = info.shape[0]
    if not heads:
        return np.zeros(0, np.int64)
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
