"""A struct-level GGUF writer that writes whatever it is told, right or wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U8, U16, U32, I32, F32, BOOL, STR, ARR, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
TYPE_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "str", 9: "arr"}
TYPE_NAMES |= {10: "u64", 11: "i64", 12: "f64"}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw) if length is None else length) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + u32(kind) + payload


def scalar(key: str | bytes, kind: int, value: object) -> bytes:
    payload = string(value) if isinstance(value, (str, bytes)) else struct.pack("<" + CODES[kind], value)
    return entry(key, kind, payload)


def array(key: str, kind: int, values: Sequence[object], count: int | None = None) -> bytes:
    items = b"".join(string(v) if isinstance(v, (str, bytes)) else struct.pack("<" + CODES[kind], v) for v in values)
    return entry(key, ARR, u32(kind) + u64(len(values) if count is None else count) + items)


def tensor(
    name: str | bytes, ne: Sequence[int], kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    """A row of the tensor table; ``ne`` in ggml's order, the row length first."""
    count = len(ne) if dimensions is None else dimensions
    return string(name) + u32(count) + b"".join(map(u64, ne)) + struct.pack("<i", kind) + u64(offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = u64(len(tensors) if tensor_count is None else tensor_count)
    counts += u64(len(keys) if key_count is None else key_count)
    head = magic + u32(version) + counts + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


TOKENS = ["<unk>", "<s>", "</s>", "▁a", "b", "▁ä", "日", "👍"]
ARCHITECTURE = scalar("general.architecture", STR, "llama")
SETTINGS = {
    "block_count": (U32, 1),
    "context_length": (U32, 64),
    "embedding_length": (U32, 32),
    "feed_forward_length": (U32, 32),
    "attention.head_count": (U32, 2),
    "attention.head_count_kv": (U32, 1),
    "attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "rope.dimension_count": (U32, 16),
    "vocab_size": (U32, len(TOKENS)),
}
KEYS = [
    ARCHITECTURE,
    *(scalar(f"llama.{key}", kind, value) for key, (kind, value) in SETTINGS.items()),
    scalar("tokenizer.ggml.model", STR, "llama"),
    array("tokenizer.ggml.tokens", STR, TOKENS),
    array("tokenizer.ggml.scores", F32, [0.0] * len(TOKENS)),
    array("tokenizer.ggml.token_type", I32, [2, 3, 3, 1, 1, 1, 1, 1]),
    scalar("tokenizer.ggml.bos_token_id", U32, 1),
    scalar("tokenizer.ggml.eos_token_id", U32, 2),
    scalar("tokenizer.ggml.add_bos_token", BOOL, True),
]
TENSORS = [  # f32, q8_0 and f16; sizes and offsets below
    tensor("token_embd.weight", [32, 8], 0, 0),
    tensor("output_norm.weight", [32], 0, 1024),
    tensor("output.weight", [32, 8], 8, 1152),
    tensor("blk.0.attn_q.weight", [32, 2], 1, 1440),
]
DATA = bytes(range(256)) * 6 + bytes(32)  # 1440 + 128 bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """The good file that others are made from."""

    data: bytes
    tensors_at: int  # the byte where the tensor table starts
    data_at: int


def sample(version: int = 3) -> Sample:
    whole = gguf(KEYS, TENSORS, DATA, version=version)
    return Sample(whole, 24 + len(b"".join(KEYS)), len(whole) - len(DATA))
