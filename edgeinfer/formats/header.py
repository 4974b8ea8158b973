"""The header of one GGUF file, versions 2 and 3: metadata and where each tensor lies.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Everything is little-endian. Stricter than the
text in what llama.cpp is strict about (tensors lie back to back, in the order of the header) and where laxness hides
damage (booleans are 0 or 1, names are printable, no tensor is empty).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import MAX_KEY, MAX_STRING, U32, U64, Cursor, MetadataValue
from edgeinfer.formats.foreign import HEAD, not_gguf, unsupported
from edgeinfer.quant.codec import BY_GGML_ID, Codec

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_535
MAX_TENSORS = 65_535
MAX_METADATA = 256 << 20  # bytes
MAX_TEMPLATE = 1 << 20  # bytes of a chat template
MAX_TENSOR_NAME = 64  # bytes
MAX_ELEMENTS = 2**63 - 1
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
_ALIGNMENT = "general.alignment"
_U32_TYPE = 4
_SMALLEST_KEY = 8 + 1 + 4 + 1  # bytes: length, one letter, type, one byte of value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # length, one letter, dimensions, one of them, type, offset
_ROWS = {n: struct.Struct(f"<{n}QiQ") for n in (1, 2, 3, 4)}  # by dimensions: each of them, the type, the offset
_REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is made of."""

    name: str
    shape: tuple[int, ...]  # as numpy orders it: ggml's ne reversed, the row length last
    codec: Codec
    offset: int  # bytes from the start of its file
    nbytes: int
    shard: int = 0

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.codec.weights * self.codec.bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says of itself. ``offsets`` holds the byte at which each key starts."""

    version: int
    metadata: dict[str, MetadataValue]
    offsets: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    trailing: int  # bytes behind the last tensor and its padding


def read_header(data: mmap, path: Path, shard: int = 0) -> Header:
    """Parses and checks the header. Raises CorruptFile or UnsupportedModel."""
    cursor = Cursor(data, path)
    version = _version(cursor)
    tensor_count = _count(cursor, "tensor count", MAX_TENSORS, _SMALLEST_TENSOR)
    key_count = _count(cursor, "key count", MAX_KEYS, _SMALLEST_KEY)
    metadata, offsets = _metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata, offsets)
    rows = [_tensor_row(cursor) for _ in range(tensor_count)]
    tensors, end = _placed(cursor, rows, alignment, shard)
    return Header(version, metadata, offsets, tensors, max(0, len(data) - end))


def _version(cursor: Cursor) -> int:
    head = cursor.data[:HEAD]
    if not head.startswith(MAGIC):
        if MAGIC.startswith(head):
            cursor.need(len(MAGIC), "magic")
        raise not_gguf(cursor.path, head)
    cursor.at = len(MAGIC)
    version = cursor.number(U32, "version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        problem = f"a big-endian file (version {swapped} with its bytes swapped); convert it to little-endian"
    elif version == 1:
        problem = "GGUF version 1, which llama.cpp dropped as well; convert the original model again (2 and 3 are read)"
    elif version > max(VERSIONS):
        problem = f"GGUF version {version}; this edgeinfer reads versions 2 and 3; a newer one may read it"
    else:
        raise cursor.error("version", f"GGUF version {version}; expected 2 or 3", len(MAGIC))
    raise unsupported(cursor.path, "version", len(MAGIC), problem, version)


def _count(cursor: Cursor, field: str, limit: int, smallest: int) -> int:
    start = cursor.at
    count = cursor.number(U64, field)
    if count > limit:
        raise cursor.error(field, f"{count}; the limit is {limit}", start)
    if count * smallest > cursor.end - cursor.at:
        left = cursor.end - cursor.at
        raise cursor.error(field, f"{count}, but the {left} bytes left hold no more than {left // smallest}", start)
    return count


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, MetadataValue], dict[str, int]]:
    metadata: dict[str, MetadataValue] = {}
    offsets: dict[str, int] = {}
    for index in range(count):
        start = cursor.at
        key = cursor.name(f"key {index}", MAX_KEY)
        if key in metadata:
            raise cursor.error(key, f"a duplicate key; it stands at byte {offsets[key]} already", start)
        kind = cursor.number(U32, key)
        if key == _ALIGNMENT and kind != _U32_TYPE:
            raise cursor.error(key, f"value type {kind}; expected {_U32_TYPE} (u32)", cursor.at - 4)
        limit = MAX_TEMPLATE if key.startswith("tokenizer.chat_template") else MAX_STRING
        metadata[key] = cursor.value(kind, key, limit)
        offsets[key] = start
        if cursor.at > MAX_METADATA:
            raise cursor.error(key, f"more than {MAX_METADATA} bytes of metadata", start)
    return metadata, offsets


def _alignment(cursor: Cursor, metadata: dict[str, MetadataValue], offsets: dict[str, int]) -> int:
    value = metadata.get(_ALIGNMENT, DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value.bit_count() != 1 or value > MAX_ALIGNMENT:
        problem = f"an alignment of {value}; expected a power of two up to {MAX_ALIGNMENT}"
        raise cursor.error(_ALIGNMENT, problem, offsets[_ALIGNMENT])
    return value


class _Row(NamedTuple):
    """A line of the tensor table; ``start`` is the byte where it lies, ``offset`` counts from the start of the data."""

    name: str
    start: int
    shape: tuple[int, ...]
    codec: Codec
    offset: int
    nbytes: int


def _tensor_row(cursor: Cursor) -> _Row:
    start = cursor.at
    name = cursor.name("tensor name", MAX_TENSOR_NAME)
    after_name = cursor.at
    dimensions = cursor.number(U32, name)
    if dimensions not in _ROWS:
        raise cursor.error(name, f"{dimensions} dimensions; expected 1 to {len(_ROWS)}", after_name)
    *ne, ggml_id, offset = cursor.numbers(_ROWS[dimensions], name)
    shape = tuple(reversed(ne))
    weights = math.prod(ne)
    if weights == 0:
        raise cursor.error(name, f"a dimension of 0 in {list(shape)}", after_name)
    if weights > MAX_ELEMENTS:
        raise cursor.error(name, f"a shape of {list(shape)}, more than 2^63 - 1 weights", after_name)
    codec = BY_GGML_ID.get(ggml_id)
    if codec is None:
        raise _unknown_type(cursor, name, ggml_id)
    if ne[0] % codec.weights:
        problem = f"rows of {ne[0]} weights; {codec.name} stores {codec.weights} in a block"
        raise cursor.error(name, problem, after_name)
    return _Row(name, start, shape, codec, offset, weights // codec.weights * codec.bytes)


def _unknown_type(cursor: Cursor, name: str, ggml_id: int) -> UnsupportedModel:
    if ggml_id in _REMOVED:
        problem = f"tensor type {ggml_id} ({_REMOVED[ggml_id]}), removed from ggml; quantize the original model again"
    else:
        problem = f"tensor type {ggml_id}, unknown to this edgeinfer; known are {min(BY_GGML_ID)} to {max(BY_GGML_ID)}"
    return unsupported(cursor.path, name, cursor.at - 12, problem, ggml_id)


def _placed(cursor: Cursor, rows: list[_Row], alignment: int, shard: int) -> tuple[tuple[TensorInfo, ...], int]:
    """Tensors with absolute offsets, and the byte behind the last one's padding."""
    base = _padded(cursor.at, alignment)
    expected = 0
    tensors: dict[str, TensorInfo] = {}
    for row in rows:
        if row.name in tensors:
            raise cursor.error(row.name, "a duplicate tensor name", row.start)
        if row.offset != expected:
            raise cursor.error(row.name, _misplaced(row.offset, expected, alignment), row.start)
        stop = base + row.offset + row.nbytes
        if stop > cursor.end:
            problem = f"the tensor ends at byte {stop}, the file at {cursor.end}; it is incomplete, download it again"
            raise cursor.error(row.name, problem, min(base + row.offset, cursor.end))
        tensors[row.name] = TensorInfo(row.name, row.shape, row.codec, base + row.offset, row.nbytes, shard)
        expected = _padded(expected + row.nbytes, alignment)
    return tuple(tensors.values()), base + expected


def _misplaced(offset: int, expected: int, alignment: int) -> str:
    if offset % alignment:
        return f"a data offset of {offset}, which is no multiple of the alignment {alignment}"
    relation = "overlaps the tensor before it" if offset < expected else "leaves a gap after the tensor before it"
    return f"a data offset of {offset} {relation}; expected {expected}"


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
