"""Malformed GGUF files by the hundred, each with what its error must name.

``CASES`` is the table. The letters F1 … F20 are the kinds of bad input that the project promises to survive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from edgeinfer.errors import CorruptFile, ModelError, UnsupportedModel
from edgeinfer.formats.config import LIMITS
from edgeinfer.quant.codec import BY_GGML_ID
from tests.formats.craft import (
    ARCHITECTURE,
    ARR,
    BOOL,
    CODES,
    DATA,
    F32,
    I32,
    KEYS,
    SETTINGS,
    STR,
    TENSORS,
    TYPE_NAMES,
    U8,
    U16,
    U32,
    U64,
    array,
    entry,
    gguf,
    sample,
    scalar,
    string,
    tensor,
    u32,
    u64,
)


@dataclass(frozen=True, slots=True)
class Case:
    """``names`` is the field, key or tensor of the error, ``at`` the byte where known beforehand."""

    name: str
    data: bytes
    names: str
    error: type[ModelError] = CorruptFile
    at: int | None = None


HUGE = {"2^63": 1 << 63, "2^64-8": (1 << 64) - 8, "2^64-1": (1 << 64) - 1, "2^32": 1 << 32}
NOT_UTF8 = {
    "a lone 0xff": b"a\xff",
    "an overlong slash": b"\xc0\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "half a character": b"ab\xe2\x82",
    "beyond U+10FFFF": b"\xf5\x80\x80\x80",
}
NOT_PRINTABLE = {
    "NUL": "a\0b",
    "a newline": "a\nb",
    "an escape": "a\x1b]52;c;aGk=\x07",
    "DEL": "a\x7f",
    "a C1 control": "a\x9b2J",
    "a bidi override": "a\u202eb",
    "a line separator": "a\u2028b",
    "a byte order mark": "\ufeffa",
}
_FIRST_KEY = 24  # the byte where metadata starts
_LAST = gguf(KEYS, TENSORS, DATA)


def _header() -> Iterator[Case]:
    good = sample().data
    yield Case("F1 empty file", b"", "file", at=0)
    for size in range(1, 24):
        # with 16 bytes the count of tensors is known, and weighed against the bytes left
        field = "magic" if size < 4 else "version" if size < 8 else "tensor count"
        yield Case(f"F1 the first {size} bytes", good[:size], field)
    for version in (0, 65_536, 0x02000001):
        kind = CorruptFile if version == 0 else UnsupportedModel
        yield Case(f"F3 version {version}", gguf(KEYS, version=version), "version", kind, at=4)
    for version in (1, 4, 5, 100, 2**31 - 1, 2**32 - 1):
        yield Case(f"F3 version {version}", gguf(KEYS, version=version), "version", UnsupportedModel, at=4)
    for version in (1, 2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
        yield Case(f"F3 big-endian version {version}", gguf(version=swapped), "version", UnsupportedModel, at=4)
    for name, count in {**HUGE, "65536": 65_536, "one too many": len(good), "1000": 1000}.items():
        yield Case(f"F4 {name} tensors", gguf(KEYS, tensor_count=count), "tensor count", at=8)
        yield Case(f"F4 {name} keys", gguf([ARCHITECTURE], key_count=count), "key count", at=16)
    yield Case("F4 one key more than there are", gguf([ARCHITECTURE, b"\x20" * 14], key_count=2), "key 1")


def _foreign() -> Iterator[Case]:
    zero = bytes(600)
    models = {
        "F2 magic FUGG": b"FUGG\0\0\0\3" + zero,
        "F2 magic GGML": b"GGML" + zero,
        "F2 magic GGMF": b"GGMF" + zero,
        "F2 magic GGJT": b"GGJT" + zero,
        "F2 an old ggml file": b"lmgg" + zero,
        "F2 an old ggmf file": b"fmgg" + zero,
        "F2 an old ggjt file": b"tjgg" + zero,
        "F2 an old ggla file": b"algg" + zero,
        "F2 a zip archive": b"PK\3\4" + zero,
        "F2 a pickle": b"\x80\2}q\0." + zero,
        "F2 safetensors": u64(60) + b'{"__metadata__":{"format":"pt"}}' + zero,
    }
    others = {
        "F2 magic gguf": b"gguf" + u32(3) + zero,
        "F2 a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n",
        "F2 an HTML page": b"<!DOCTYPE html><html><title>Sign in</title>",
        "F2 an HTML page behind white space": b"\r\n\t <HTML lang=en>",
        "F2 an HTML page behind a byte order mark": b"\xef\xbb\xbf<!doctype html>",
        "F2 an XML page": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "F2 a JSON answer": b'{"error":"Invalid username or password."}',
        "F2 gzip": b"\x1f\x8b\x08" + zero,
        "F2 zstd": b"\x28\xb5\x2f\xfd" + zero,
        "F2 tar": b"model.gguf".ljust(257, b"\0") + b"ustar" + zero,
        "F2 PDF": b"%PDF-1.7" + zero,
        "F2 zeros": zero,
        "F2 plain text": b"Entry not found",
        "F2 escape codes": b"\x1b]52;c;aGk=\x07\n\n",
        "F2 one byte": b"x",
        "F2 one zero byte": b"\0",
    }
    for name, data in models.items():
        yield Case(name, data, "magic", UnsupportedModel, at=0)
    for name, data in others.items():
        yield Case(name, data, "magic", at=0)


def _keys() -> Iterator[Case]:
    tail = u32(U8) + b"\1" + bytes(100)
    for name, length in {**HUGE, "65536": 65_536, "one more than is left": len(tail) + 2}.items():
        data = gguf([string("k", length) + tail], key_count=1)
        yield Case(f"F5 a key of {name} bytes", data, "key 0")
    long = gguf([entry("k" * 65_536, U8, b"\1")])
    yield Case("F5 a key of 65536 bytes that are there", long, "key 0", at=_FIRST_KEY)
    yield Case("F5 an empty key", gguf([ARCHITECTURE, scalar("", U8, 1)]), "key 1", at=_FIRST_KEY + len(ARCHITECTURE))
    for name, raw in NOT_UTF8.items():
        yield Case(f"F5 a key with {name}", gguf([scalar(raw, U8, 1)]), "key 0")
    for name, text in NOT_PRINTABLE.items():
        yield Case(f"F5 a key with {name}", gguf([scalar(text, U8, 1)]), "key 0", at=_FIRST_KEY)
    pair = [scalar("twice", U8, 1), *KEYS, scalar("twice", U8, 1)]
    at = _FIRST_KEY + len(b"".join(pair[:-1]))
    yield Case("F9 a duplicate key", gguf(pair), "twice", at=at)
    yield Case("F9 a duplicate key of another type", gguf([*pair[:-1], scalar("twice", STR, "x")]), "twice", at=at)


def _strings() -> Iterator[Case]:
    for name, length in {**HUGE, "one more than is left": 101}.items():
        data = gguf([entry("general.name", STR, string(b"", length) + bytes(100))], key_count=1, alignment=1)
        yield Case(f"F5 a string of {name} bytes", data, "general.name")
        data = gguf([array("a.list", STR, ["x"], count=2) + string(b"", length) + bytes(100)], key_count=1, alignment=1)
        yield Case(f"F5 an item of {name} bytes", data, "a.list")
    for name, raw in NOT_UTF8.items():
        yield Case(f"F5 a string with {name}", gguf([scalar("general.name", STR, raw)]), "general.name")
        yield Case(f"F5 an item with {name}", gguf([array("a.list", STR, ["x", raw])]), "a.list")
    big = b"x" * ((16 << 20) + 1)
    yield Case("F5 a string over 16 MiB", gguf([scalar("general.name", STR, big)]), "general.name")
    yield Case("F5 an item over 16 MiB", gguf([array("a.list", STR, [big])]), "a.list")
    for key in ("tokenizer.chat_template", "tokenizer.chat_template.tool_use"):
        data = gguf([scalar(key, STR, "x" * ((1 << 20) + 1))])
        yield Case(f"a {key} over 1 MiB", data, key, at=_FIRST_KEY + 8 + len(key) + 4)


def _values() -> Iterator[Case]:
    for kind in (13, 14, 99, 255, 2**31, 2**32 - 1):
        yield Case(f"F8 value type {kind}", gguf([entry("k", kind, bytes(64))]), "k", at=_FIRST_KEY + 9)
        item = u32(kind) + u64(1) + bytes(64)
        yield Case(f"F6 item type {kind}", gguf([entry("k", ARR, item)]), "k", at=_FIRST_KEY + 13)
    for value in (2, 7, 0x80, 0xFF):
        yield Case(f"F8 a boolean of {value}", gguf([entry("k", BOOL, bytes([value]))]), "k", at=_FIRST_KEY + 13)
        items = u32(BOOL) + u64(3) + bytes([1, 0, value])
        yield Case(f"F8 an item of {value} among booleans", gguf([entry("k", ARR, items)]), "k", at=_FIRST_KEY + 27)
    for kind, code in CODES.items():
        data = gguf([entry("k", kind, bytes(struct.calcsize("<" + code) - 1))], alignment=1)
        # a key and one byte of value are less than the smallest entry that the count of keys allows
        yield Case(f"F1 half a {TYPE_NAMES[kind]}", data, "k" if len(data) >= 24 + 14 else "key count")


def _arrays() -> Iterator[Case]:
    counts = {"2^62": 1 << 62, **HUGE, "one too many": 9}
    for kind, kind_name in TYPE_NAMES.items():
        if kind == ARR:
            continue
        size = 8 if kind == STR else struct.calcsize("<" + CODES[kind])
        for name, count in counts.items():
            data = gguf([entry("k", ARR, u32(kind) + u64(count) + bytes(8 * size))], alignment=1)
            yield Case(f"F6 an array of {name} {kind_name}", data, "k")
    for depth in (2, 10, 10_000):
        nested = u32(ARR) + (u64(1) + u32(ARR)) * (depth - 1) + u64(1) + u32(U8) + u64(1) + b"\1"
        yield Case(f"F6 arrays {depth} deep", gguf([entry("k", ARR, nested)]), "k", at=_FIRST_KEY + 13)
    yield Case("F6 an empty array of arrays", gguf([entry("k", ARR, u32(ARR) + u64(0))]), "k", at=_FIRST_KEY + 13)
    yield Case("F7 43 bytes and an array of 2^63", gguf([string("abc") + u32(ARR) + u32(U8)], alignment=1)[:43], "abc")
    yield Case("F7 an array of 2^63 in 51 bytes", gguf([entry("abc", ARR, u32(U8) + u64(1 << 63))], alignment=1), "abc")
    many = (16 << 20) + 1
    yield Case("more than 16 Mi items", gguf([entry("k", ARR, u32(U8) + u64(many) + bytes(many))]), "k")
    data = gguf([array("k", STR, ["8 bytes.", "8 bytes.", "8 bytes."], count=4)], alignment=1)
    yield Case("F6 a string less than announced", data, "k", at=len(data))


def _alignments() -> Iterator[Case]:
    key = "general.alignment"
    for value in (0, 3, 13, 24, 2**31, 2**21, 2**32 - 1):
        yield Case(f"F10 an alignment of {value}", gguf([scalar(key, U32, value)]), key, at=_FIRST_KEY)
    for kind, name in TYPE_NAMES.items():
        if kind not in (U32, ARR):
            value: object = "32" if kind == STR else kind == BOOL or 32
            yield Case(f"F10 an alignment as {name}", gguf([scalar(key, kind, value)]), key, at=_FIRST_KEY + 25)
    yield Case("F10 an alignment as array", gguf([array(key, U32, [32])]), key, at=_FIRST_KEY + 25)
    rows = [tensor("a", [8]), tensor("b", [8], 0, 32)]
    data = gguf([scalar(key, U32, 64)], rows, bytes(256), alignment=64)
    yield Case("F10 an alignment that the offsets break", data, "b")


def _one(name: str, row: bytes, names: str = "w", error: type[ModelError] = CorruptFile) -> Case:
    return Case(name, gguf([ARCHITECTURE], [row], bytes(4096)), names, error)


def _tensor_names() -> Iterator[Case]:
    yield _one("an empty tensor name", tensor("", [8]), "tensor name")
    yield _one("a tensor name of 65 bytes", tensor("w" * 65, [8]), "tensor name")
    for name, length in HUGE.items():
        yield _one(f"a tensor name of {name} bytes", u64(length) + bytes(64), "tensor name")
    for name, raw in NOT_UTF8.items():
        yield _one(f"a tensor name with {name}", tensor(raw, [8]), "tensor name")
    for name, text in NOT_PRINTABLE.items():
        yield _one(f"a tensor name with {name}", tensor(text, [8]), "tensor name")
    rows = [tensor("w", [8]), tensor("w", [8], 0, 32)]
    yield Case("F9 a duplicate tensor name", gguf([], rows, bytes(64)), "w", at=24 + len(rows[0]))
    rows = [tensor("w", [8]), tensor("v", [8], 0, 32), tensor("w", [8], 1, 64)]
    yield Case("F9 a duplicate tensor name further on", gguf([], rows, bytes(96)), "w")


def _shapes() -> Iterator[Case]:
    for count in (0, 5, 8, 2**31, 2**32 - 1):
        yield _one(f"F11 {count} dimensions", tensor("w", [1] * min(count, 8), dimensions=count))
    for place in range(4):
        yield _one(f"F12 dimension {place} is 0", tensor("w", [0 if i == place else 4 for i in range(4)]))
    shapes = {
        "2^63-1 times 2": [2**63 - 1, 2],
        "a product of 2^64 + 2^22": [4_194_305, 4_194_305, 211_106_198_978_564],
        "a product that wraps to small": [4, 2**30 - 1, 2**30 + 1],
        "2^63": [2**63],
        "2^64-1": [2**64 - 1],
        "2^32 squared": [2**32, 2**32],
        "2^16 to the fourth": [2**16] * 4,
        "2^62": [2**62],
        "more than the file": [1025],
        "more rows than the file": [8, 129],
    }
    for name, ne in shapes.items():
        yield _one(f"F12 {name}", tensor("w", ne))
    for codec in BY_GGML_ID.values():
        if codec.weights > 1:
            yield _one(
                f"F12 a row of {codec.weights + 1} in {codec.name}", tensor("w", [codec.weights + 1], codec.ggml_id)
            )
            yield _one(f"F14 {codec.name} a block too long", tensor("w", [codec.weights, 4096], codec.ggml_id))
    for kind in (-1, 4, 5, 31, 32, 33, 36, 37, 38, 43, 200, 2**31 - 1, -(2**31)):
        yield _one(f"F13 tensor type {kind}", tensor("w", [256], kind), "w", UnsupportedModel)


def _offsets() -> Iterator[Case]:
    for offset in (1, 8, 31, 32, 1 << 40, 2**63, 2**64 - 32, 2**64 - 1):
        yield _one(f"F14 a first tensor at {offset}", tensor("w", [8], 0, offset))
    for name, offset in {
        "on the first": 0,
        "unaligned": 33,
        "after a gap": 64,
        "short": 24,
        "2^64-32": 2**64 - 32,
    }.items():
        rows = [tensor("v", [8]), tensor("w", [8], 0, offset)]
        yield Case(f"F14 a second tensor {name}", gguf([], rows, bytes(256)), "w")
    swapped = [tensor("w", [8], 0, 32), tensor("v", [8], 0, 0)]
    yield Case("F14 tensors in another order than their data", gguf([], swapped, bytes(64)), "w")
    rows = [tensor("v", [32, 16], 8), tensor("w", [32], 0, 16 * 30)]  # rows of 30 bytes instead of 34
    yield Case("F14 rows stored short", gguf([], rows, bytes(4096)), "w")
    for codec in BY_GGML_ID.values():
        size = 4 * codec.bytes
        data = gguf([], [tensor("w", [codec.weights, 4], codec.ggml_id)], bytes(size - 1))
        yield Case(f"F14 {codec.name} one byte past the end", data, "w", at=len(data) - size + 1)
    yield Case("F14 no data at all", gguf([], [tensor("w", [8])]), "w")
    yield Case("F14 the padding before the data cut", gguf([], [tensor("w", [8])], alignment=1), "w")
    vocabulary = array("tokenizer.ggml.tokens", STR, [f"token {number}" for number in range(150_000)])
    yield Case("F14 no data behind a large vocabulary", gguf([vocabulary], [tensor("w", [8])]), "w")
    yield Case("F14 the last tensor cut short", _LAST[:-1], "blk.0.attn_q.weight")
    yield Case("F14 half the data", _LAST[: -len(DATA) // 2], "token_embd.weight")


def _truncated() -> Iterator[Case]:
    """The good file, cut in the middle of each part of its metadata and its tensor table."""
    good = sample()
    at = _FIRST_KEY
    for part in KEYS:
        (length,) = struct.unpack_from("<Q", part)
        yield Case(f"F1 cut inside {part[8 : 8 + length].decode()}", good.data[: at + len(part) - 1], "")
        at += len(part)
    for part in TENSORS:
        (length,) = struct.unpack_from("<Q", part)
        name = part[8 : 8 + length].decode()
        for field, cut in {"name": 4, "shape": 8 + length + 6, "type": len(part) - 10, "offset": len(part) - 2}.items():
            yield Case(
                f"F1 cut inside the {field} of {name}", good.data[: at + cut], "tensor name" if cut == 4 else name
            )
        at += len(part)


def _settings() -> Iterator[Case]:
    """Sound files whose settings the strict reader of settings refuses."""
    architecture = "general.architecture"
    yield Case("F16 no architecture", gguf([scalar("general.name", STR, "x")]), architecture)
    yield Case("F16 an architecture as number", gguf([scalar(architecture, U32, 3)]), architecture, at=24)
    yield Case("F16 an architecture as array", gguf([array(architecture, STR, ["llama"])]), architecture, at=24)
    for name, text in {**NOT_PRINTABLE, "nothing": ""}.items():
        yield Case(f"F16 an architecture with {name}", gguf([scalar(architecture, STR, text)]), architecture, at=24)
    bad = {
        "under the least": (I32, lambda low, high: low - 1),
        "over the most": (U64, lambda low, high: high + 1),
        "10^9 over the most": (U64, lambda low, high: high + 10**9),
        "as float": (F32, lambda low, high: float(low)),
        "as string": (STR, lambda low, high: str(low)),
        "as boolean": (BOOL, lambda low, high: True),
    }
    for key, (low, high) in LIMITS.items():
        if key not in SETTINGS:
            continue
        for name, (kind, value) in bad.items():
            keys = [scalar(f"llama.{key}", kind, value(low, high)), ARCHITECTURE]
            yield Case(f"F17 {key} {name}", gguf(keys), f"llama.{key}", at=_FIRST_KEY)
        keys = [array(f"llama.{key}", U16, [low, low]), ARCHITECTURE]
        yield Case(f"F17 {key} as array", gguf(keys), f"llama.{key}", at=_FIRST_KEY)
        yield Case(f"F17 no {key}", gguf([ARCHITECTURE]), f"llama.{key}")
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    for name, number in {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "negative": -1.0}.items():
        yield Case(f"F17 an epsilon of {name}", gguf([scalar(epsilon, F32, number), ARCHITECTURE]), epsilon, at=24)


CASES: tuple[Case, ...] = (
    *_header(),
    *_foreign(),
    *_keys(),
    *_strings(),
    *_values(),
    *_arrays(),
    *_alignments(),
    *_tensor_names(),
    *_shapes(),
    *_offsets(),
    *_truncated(),
)
SETTINGS_CASES: tuple[Case, ...] = tuple(_settings())
