"""Tiny random models as GGUF files, made by the ``gguf`` package and loadable by llama.cpp.

Two layers of 64 channels and a byte-level BPE vocabulary of 320 real tokens: ``tiny_gguf(path)`` takes milliseconds,
and whatever a test needs to be odd about the model is an argument.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants

from edgeinfer.quant.codec import CODECS, Codec

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ("<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PAIRS = (
    "t h|th e|i n|e r|a n|o n|r e|a t|e n|o r|i s|e s|i t|o u|e d|a r|a l|l e|o f|s t|in g|an d|en t|i on|v e|l l",
    "Ġ t|Ġ a|Ġ s|Ġ w|Ġ b|Ġ c|Ġ f|Ġ p|Ġ m|Ġ o|Ġ h|Ġ d|Ġt h|Ġth e|Ġ and|Ġt o|Ġo f|Ġ in|Ġa n|Ġw h|Ġb e|Ġs t|Ġf or|Ġ is",
    "0 0|1 0|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ|! !|. .|.. .|H e|He ll",
)
MERGES = tuple(merge for line in _PAIRS for merge in line.split("|"))
PRETOKENIZERS = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2", "gemma3": "smollm"}


def tiny_gguf(
    path: Path,
    architecture: str = "llama",
    seed: int = 0,
    *,
    codec: str | Mapping[str, str] = "f32",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    feed_forward: int = 128,
    context: int = 512,
    tied: bool = True,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """Writes a random model to ``path`` and returns it.

    ``codec`` is the format of every matrix, or maps a part of a tensor's name to a format (others stay f32; K-quants
    want rows of a multiple of 256). ``metadata`` adds or replaces keys, which may leave the architecture's prefix out
    by starting with a dot (``.rope.freq_base``), and drops those that are None; ``tensors`` does the same for tensors.
    """
    random = np.random.default_rng(seed)
    keys = _hyperparameters(architecture, layers, hidden, heads, kv_heads, head_dim, feed_forward, context)
    keys |= vocabulary(architecture)
    for key, value in (metadata or {}).items():
        keys[architecture + key if key.startswith(".") else key] = value
    weights: dict[str, np.ndarray | None] = dict(
        _weights(random, architecture, layers, hidden, heads, kv_heads, head_dim, feed_forward, tied)
    )
    weights |= tensors or {}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if value is not None:
            _write_key(writer, key, value)
    for name, weight in weights.items():
        if weight is not None:
            form = _codec_of(name, weight, codec)
            writer.add_tensor(
                name, encode(weight.astype(np.float32), form), raw_dtype=GGMLQuantizationType[form.upper()]
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encode(weights: np.ndarray, codec: str) -> np.ndarray:
    """Stored blocks of ``weights`` (..., K) float32; formats that ``gguf`` only reads are encoded by ggml itself."""
    row = CODECS[codec]
    try:
        return quants.quantize(weights, GGMLQuantizationType(row.ggml_id))
    except (NotImplementedError, ValueError):
        return _ggml_quantize(weights, row)


def random_blocks(codec: Codec, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Stored blocks of a random matrix: (rows, bytes of a row) uint8.

    ggml takes seconds to encode the formats with codebooks, so theirs are random bytes with a reasonable scale.
    """
    if codec.family == "affine":
        blocks = random.integers(0, 256, (rows * columns // codec.weights, codec.bytes), np.uint8)
        blocks[:, :8] = random.uniform(-1e-2, 1e-2, (len(blocks), 2)).astype("<f4").view(np.uint8)
        return blocks.reshape(rows, -1)
    if codec.family != "grids":
        stored = encode(random.standard_normal((rows, columns)).astype(np.float32), codec.name)
        return np.ascontiguousarray(stored).view(np.uint8).reshape(rows, -1)
    blocks = random.integers(0, 256, (rows, columns // codec.weights, codec.bytes), np.uint8)
    d = random.uniform(1e-3, 2e-3, blocks.shape[:2]).astype("<f2").view("<u2")
    if codec.name == "iq1_m":  # four bits of d at the top of each 16 of scales
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | (d[..., None] >> np.arange(0, 16, 4) << 4).astype(np.uint8) & 240
    else:
        blocks[..., :2] = d[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _ggml_quantize(weights: np.ndarray, codec: Codec) -> np.ndarray:
    from llama_cpp._ggml import libggml

    function = libggml.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    rows, columns = weights.reshape(-1, weights.shape[-1]).shape
    source = np.ascontiguousarray(weights)
    importance = np.ones(columns, np.float32)  # the smallest formats insist on having one
    blocks = np.zeros((*weights.shape[:-1], columns // codec.weights * codec.bytes), np.uint8)
    written = function(codec.ggml_id, source.ctypes.data, blocks.ctypes.data, 0, rows, columns, importance.ctypes.data)
    if written != blocks.nbytes:
        raise ValueError(f"ggml wrote {written} bytes of {codec.name}, expected {blocks.nbytes}")
    return blocks


def _codec_of(name: str, weight: np.ndarray, codec: str | Mapping[str, str]) -> str:
    if weight.ndim == 1:
        return "f32"
    if isinstance(codec, str):
        return codec
    return next((form for part, form in codec.items() if part in name), "f32")


def _hyperparameters(
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    feed_forward: int,
    context: int,
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": hidden,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": head_dim,
    }
    if architecture == "gemma3":
        values |= {"attention.sliding_window": 32, "rope.freq_base": 1e6}
        del values["rope.dimension_count"]
    return {f"{architecture}.{key}": value for key, value in values.items()}


def vocabulary(architecture: str) -> dict[str, Any]:
    characters = _byte_characters()
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*characters, *merged, *CONTROL_TOKENS]
    first_control = len(tokens) - len(CONTROL_TOKENS)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRETOKENIZERS.get(architecture, "smollm"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(normal)] * first_control + [int(control)] * len(CONTROL_TOKENS),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": first_control,
        "tokenizer.ggml.eos_token_id": first_control + 3,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
        "general.name": f"tiny {architecture}",
    }


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in GPT-2's vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    code = {byte: byte for byte in plain} | {byte: 256 + index for index, byte in enumerate(others)}
    return [chr(code[byte]) for byte in range(256)]


def _weights(
    random: np.random.Generator,
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    feed_forward: int,
    tied: bool,
) -> dict[str, np.ndarray]:
    vocabulary = 256 + len(MERGES) + len(CONTROL_TOKENS)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return np.asarray(random.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns))

    def norm(size: int) -> np.ndarray:
        return np.asarray(1 + 0.2 * random.standard_normal(size))

    weights = {"token_embd.weight": matrix(vocabulary, hidden), "output_norm.weight": norm(hidden)}
    if not tied:
        weights["output.weight"] = matrix(vocabulary, hidden)
    for layer in range(layers):
        block = {
            "attn_norm.weight": norm(hidden),
            "attn_q.weight": matrix(heads * head_dim, hidden),
            "attn_k.weight": matrix(kv_heads * head_dim, hidden),
            "attn_v.weight": matrix(kv_heads * head_dim, hidden),
            "attn_output.weight": matrix(hidden, heads * head_dim),
            "ffn_norm.weight": norm(hidden),
            "ffn_gate.weight": matrix(feed_forward, hidden),
            "ffn_up.weight": matrix(feed_forward, hidden),
            "ffn_down.weight": matrix(hidden, feed_forward),
        }
        if architecture == "qwen2":
            for name, size in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                block[f"attn_{name}.bias"] = 0.3 * random.standard_normal(size * head_dim)
        if architecture in ("qwen3", "gemma3"):
            block |= {"attn_q_norm.weight": norm(head_dim), "attn_k_norm.weight": norm(head_dim)}
        if architecture == "gemma3":
            block |= {"post_attention_norm.weight": norm(hidden), "post_ffw_norm.weight": norm(hidden)}
        weights |= {f"blk.{layer}.{name}": weight for name, weight in block.items()}
    return weights


def _write_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
