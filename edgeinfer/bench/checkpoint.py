"""A GGUF file's weights as a Hugging Face checkpoint in float32, for engines that read no GGUF.

Names and layouts are those of the published checkpoints: query and key channels in halves, Gemma's norms without the 1
that GGUF has added. Anything that the written ``config.json`` could not say is refused, so that no other model is
measured than the one that was asked for.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import DiskLimit, UnsupportedModel
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile, TensorInfo, open_gguf
from edgeinfer.quant.codec import decode

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""``general.architecture`` -> ``model_type``."""

_IGNORED = ("context_length", "rope.scaling.finetuned", "rope.dimension_count", "attention.value_length", "vocab_size")
_TOP = {"token_embd.": "model.embed_tokens.", "output_norm.": "model.norm.", "output.": "lm_head."}
_LAYER = {
    "attn_norm.": "input_layernorm.",
    "attn_q.": "self_attn.q_proj.",
    "attn_k.": "self_attn.k_proj.",
    "attn_v.": "self_attn.v_proj.",
    "attn_output.": "self_attn.o_proj.",
    "attn_q_norm.": "self_attn.q_norm.",
    "attn_k_norm.": "self_attn.k_norm.",
    "ffn_norm.": "post_attention_layernorm.",
    "ffn_gate.": "mlp.gate_proj.",
    "ffn_up.": "mlp.up_proj.",
    "ffn_down.": "mlp.down_proj.",
}
_LAYER_GEMMA = _LAYER | {
    "post_attention_norm.": "post_attention_layernorm.",
    "ffn_norm.": "pre_feedforward_layernorm.",
    "post_ffw_norm.": "post_feedforward_layernorm.",
}
_FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LAYERS_OF_27B = 62  # of Gemma 3: the one size whose queries are scaled by its embedding's share of a head


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor on its way: ``turn`` makes of the decoded weights what the checkpoint holds."""

    info: TensorInfo
    name: str
    turn: Callable[[NDArray[np.float32]], NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.info.shape)


def checkpoint_bytes(path: Path) -> int:
    """The size of what ``write_checkpoint`` would write."""
    with open_gguf(path) as file:
        return sum(4 * math.prod(info.shape) for info in file.tensors.values())


def write_checkpoint(path: Path, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` (float32) for a GGUF file into ``folder``.

    Raises UnsupportedModel for a model that has no such form here, DiskLimit, and what opening the file raises.
    """
    with open_gguf(path) as file:
        settings = _settings(file)
        tensors = _tensors(file, Config.from_gguf(file))
        needed = sum(tensor.nbytes for tensor in tensors)
        available = shutil.disk_usage(folder).free
        if needed > available:
            raise DiskLimit(
                f"{folder} has room for {available >> 20} MiB, the float32 weights take {needed >> 20} MiB; "
                "set TMPDIR to a folder with more room",
                needed,
                available,
            )
        _write_safetensors(file, tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings, indent=1))


def _settings(file: GGUFFile) -> dict[str, Any]:
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
        "torch_dtype": "float32",
    }
    settings |= _rope_scaling(file, config, settings)
    if config.architecture == "gemma3":
        settings |= {
            "query_pre_attn_scalar": hidden / heads if layers == _LAYERS_OF_27B else head_dim,
            "sliding_window": config.read("attention.sliding_window", int),
            "sliding_window_pattern": config.read("attention.sliding_window_pattern", int, 6),
            "rope_local_base_freq": config.read("rope.freq_base_swa", float, 10000.0),
            "hidden_activation": "gelu_pytorch_tanh",
        }
    if config.architecture == "qwen2" and head_dim * heads != hidden:
        raise config.unsupported("attention.key_length", head_dim, (hidden // heads,))
    config.refuse_unread(_IGNORED)
    return settings


def _rope_scaling(file: GGUFFile, config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    if _FREQUENCIES in file.tensors:
        return {"rope_scaling": _llama3(file, settings)}
    config.expect("rope.scaling.type", "none", "linear", None)
    factor = config.read("rope.scaling.factor", float, 1.0)
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


def _tensors(file: GGUFFile, config: Config) -> list[_Tensor]:
    heads = config.read("attention.head_count", int)
    kv_heads = config.read("attention.head_count_kv", int, heads)
    gemma = config.architecture == "gemma3"

    def turn(name: str) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        if gemma and "norm." in name:
            return lambda weights: weights - 1
        if config.architecture == "llama" and ".attn_q." in name:
            return lambda weights: _halves(weights, heads)
        if config.architecture == "llama" and ".attn_k." in name:
            return lambda weights: _halves(weights, kv_heads)
        return lambda weights: weights

    layer_names = _LAYER_GEMMA if gemma else _LAYER
    return [
        _Tensor(info, _renamed(file, name, layer_names), turn(name))
        for name, info in file.tensors.items()
        if name != _FREQUENCIES
    ]


def _renamed(file: GGUFFile, name: str, layer_names: Mapping[str, str]) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    module, _, kind = name.rpartition(".")
    if module + "." in _TOP:
        return _TOP[module + "."] + kind
    root, _, rest = module.partition(".")
    layer, _, part = rest.partition(".")
    if root != "blk" or part + "." not in layer_names:
        raise UnsupportedModel(f"{file.path.name}: no checkpoint holds a tensor such as {name}", file.path, name)
    return f"model.layers.{layer}.{layer_names[part + '.']}{kind}"


def _halves(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Channels of a head from rotated pairs side by side to first halves and second halves. (heads * D, columns)."""
    return np.asarray(
        weights.reshape(heads, -1, 2, weights.shape[-1]).swapaxes(1, 2).reshape(weights.shape), np.float32
    )


def _write_safetensors(file: GGUFFile, tensors: list[_Tensor], path: Path) -> None:
    """One tensor at a time, so that no more than one is in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": "F32", "shape": list(tensor.info.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            weights = decode(tensor.info.codec, file.blocks(tensor.info.name)).reshape(tensor.info.shape)
            out.write(np.ascontiguousarray(tensor.turn(weights), "<f4").data)
