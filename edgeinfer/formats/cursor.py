"""Walking over the bytes of a mapped header: every count is checked against the bytes left before it is used."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TypeAlias

from edgeinfer.errors import CorruptFile
from edgeinfer.sanitize import sanitize

Scalar: TypeAlias = bool | int | float | str
MetadataValue: TypeAlias = Scalar | list[bool] | list[int] | list[float] | list[str]

MAX_KEY = 65_535  # bytes
MAX_STRING = 16 << 20  # bytes
MAX_ITEMS = 16 << 20  # of all arrays of a file together
STRING, ARRAY = 8, 9
_SHOWN = 80  # characters of a name that an error repeats


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number as GGUF stores it; ``code`` is its letter in the ``struct`` module."""

    name: str
    code: str
    bytes: int


NUMBERS = {
    0: NumberType("u8", "B", 1),
    1: NumberType("i8", "b", 1),
    2: NumberType("u16", "H", 2),
    3: NumberType("i16", "h", 2),
    4: NumberType("u32", "I", 4),
    5: NumberType("i32", "i", 4),
    6: NumberType("f32", "f", 4),
    7: NumberType("bool", "?", 1),
    10: NumberType("u64", "Q", 8),
    11: NumberType("i64", "q", 8),
    12: NumberType("f64", "d", 8),
}
_BOOL = 7
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def shown(name: str) -> str:
    """A name from a file as an error may print it: one line, no control characters, not too long."""
    return sanitize(name if len(name) <= _SHOWN else name[:_SHOWN] + "…", single_line=True)


class Cursor:
    """A position in one file. ``field`` and ``key`` below are what an error names."""

    def __init__(self, data: mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.end = len(data)
        self._items = MAX_ITEMS

    def error(self, field: str, problem: str, at: int | None = None) -> CorruptFile:
        return CorruptFile(self.path, shown(field), self.at if at is None else at, problem)

    def need(self, size: int, field: str) -> None:
        """Raises CorruptFile unless ``size`` more bytes are left."""
        if size > self.end - self.at:
            left = self.end - self.at
            raise self.error(field, f"the file ends here: {size} bytes expected, {left} left; download it again")

    def numbers(self, layout: struct.Struct, field: str) -> tuple[int, ...]:
        """The next whole numbers of a fixed layout."""
        self.need(layout.size, field)
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def number(self, layout: struct.Struct, field: str) -> int:
        return self.numbers(layout, field)[0]

    def string(self, field: str, limit: int = MAX_STRING) -> str:
        """The next length and that many bytes of UTF-8."""
        start = self.at
        length = self.number(U64, field)
        if length > limit:
            raise self.error(field, f"a length of {length} bytes; the limit is {limit}", start)
        self.need(length, field)
        raw = self.data[self.at : self.at + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(field, f"not UTF-8: {error.reason}", self.at + error.start) from None
        self.at += length
        return text

    def name(self, field: str, limit: int) -> str:
        """The next string, which names something: not empty, and of printable characters."""
        start = self.at
        name = self.string(field, limit)
        if not name:
            raise self.error(field, "an empty name", start)
        if not name.isprintable():
            raise self.error(field, f"control characters in the name {shown(name)!r}", start)
        return name

    def value(self, kind: int, key: str, limit: int) -> MetadataValue:
        """The next value of this type number; ``limit`` bounds a string's bytes."""
        if kind == STRING:
            return self.string(key, limit)
        if kind == ARRAY:
            return self._array(key)
        if kind not in NUMBERS:
            raise self.error(key, f"value type {kind}; GGUF has types 0 to 12", self.at - 4)
        value: Scalar = self._numbers(kind, 1, key)[0]
        return value

    def _array(self, key: str) -> MetadataValue:
        kind = self.number(U32, key)
        if kind == ARRAY:
            raise self.error(key, "an array of arrays; only arrays of numbers or strings are read", self.at - 4)
        if kind != STRING and kind not in NUMBERS:
            raise self.error(key, f"array item type {kind}; GGUF has types 0 to 12", self.at - 4)
        count = self.number(U64, key)
        size = 8 if kind == STRING else NUMBERS[kind].bytes
        left = self.end - self.at
        if count * size > left:
            raise self.error(
                key, f"an array of {count} items, but the {left} bytes left hold no more than {left // size}"
            )
        if count > self._items:
            raise self.error(key, f"an array of {count} items; all arrays together may hold {MAX_ITEMS}")
        self._items -= count
        return self._strings(count, key) if kind == STRING else self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> list[bool] | list[int] | list[float]:
        size = NUMBERS[kind].bytes * count
        self.need(size, key)
        if kind == _BOOL and (wrong := self.data[self.at : self.at + size].lstrip(b"\0\1")):
            raise self.error(key, f"a boolean of {wrong[0]}; expected 0 or 1", self.at + size - len(wrong))
        values = list(struct.unpack_from(f"<{count}{NUMBERS[kind].code}", self.data, self.at))
        self.at += size
        return values

    def _strings(self, count: int, key: str) -> list[str]:
        """The slow part of opening a model, so it is one tight loop."""
        data, at, end = self.data, self.at, self.end
        length_at = U64.unpack_from
        items: list[str] = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                start = at + 8
                stop = start + length
                if length > MAX_STRING or stop > end:
                    raise self.error(
                        key,
                        f"item {len(items)} is {length} bytes long; {end - start} are left, {MAX_STRING} allowed",
                        at,
                    )
                items.append(data[start:stop].decode())
                at = stop
        except struct.error:
            raise self.error(key, f"the file ends before item {len(items)} of {count}; download it again", at) from None
        except UnicodeDecodeError as error:
            problem = f"item {len(items)} is not UTF-8: {error.reason}"
            raise self.error(key, problem, at + 8 + error.start) from None
        self.at = at
        return items
