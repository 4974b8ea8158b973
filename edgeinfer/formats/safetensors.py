"""One safetensors file, mapped into memory: where each tensor lies.

The format: https://github.com/huggingface/safetensors#format. As strict as its own library: tensors lie back to back
from the first byte behind the header to the last of the file, in whatever order the header names them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import CorruptFile
from edgeinfer.formats.cursor import shown
from edgeinfer.formats.mapping import MappedFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_HEADER = 100_000_000  # bytes, as the library
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 8
_METADATA = "__metadata__"
DTYPES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1,
        "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    }
)  # fmt: skip
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file; ``start`` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """An open file. Raises ModelNotFound, CorruptFile (names the field and the byte) or UnsupportedModel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as opened:
            self.mapped = MappedFile(path)
            opened.callback(self.close)
            self.tensors: Mapping[str, StoredTensor] = MappingProxyType(self._read())
            opened.pop_all()

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """(nbytes,) uint8, read-only, a view of the mapped file. Raises CorruptFile if the file was changed."""
        import numpy as np

        self.mapped.check_unchanged()
        info = self.tensors[name]
        if not info.nbytes:
            return np.zeros(0, np.uint8)
        return np.frombuffer(self.mapped.data, np.uint8, info.nbytes, info.start)

    def close(self) -> None:
        self.mapped.close()

    def _error(self, field: str, at: int, problem: str) -> CorruptFile:
        return CorruptFile(self.path, shown(field), at, problem)

    def _read(self) -> dict[str, StoredTensor]:
        data = self.mapped.data
        if len(data) < 8:
            raise self._error("header", 0, f"the file has {len(data)} bytes; a header begins with 8; download it again")
        length = int.from_bytes(data[:8], "little")
        if length > min(MAX_HEADER, len(data) - 8):
            raise self._error(
                "header", 0, f"a header of {length} bytes; {len(data) - 8} follow and {MAX_HEADER} are read; "
                "it is no safetensors file, or its download broke off"
            )  # fmt: skip
        rows = self._parsed(data[8 : 8 + length])
        if len(rows) > MAX_TENSORS:
            raise self._error("header", 8, f"{len(rows)} tensors; {MAX_TENSORS} are read")
        found = [self._tensor(name, row, 8 + length) for name, row in rows.items() if name != _METADATA]
        self._check_places(found, 8 + length)
        return {tensor.name: tensor for tensor in found}

    def _parsed(self, text: bytes) -> dict[str, Any]:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            row = dict(pairs)
            if len(row) != len(pairs):
                names = [name for name, _ in pairs]
                twice = next(name for name in names if names.count(name) > 1)
                raise self._error(twice, 8, "a duplicate key in the header")
            return row

        try:
            rows = json.loads(text.decode(), object_pairs_hook=once)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise self._error(
                "header", 8, f"no JSON: {str(error) or type(error).__name__}; download it again"
            ) from None
        if not isinstance(rows, dict):
            raise self._error("header", 8, "JSON, but no object; download it again")
        return rows

    def _tensor(self, name: str, row: object, base: int) -> StoredTensor:
        if not name or not name.isprintable():
            raise self._error(name or "tensor name", 8, "a name that is empty or holds control characters")
        if not isinstance(row, dict) or row.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._error(name, 8, "expected dtype, shape and data_offsets")
        dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self._error(name, 8, f"dtype {dtype!r:.40}; known are {', '.join(DTYPES)}")
        if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
            raise self._error(name, 8, f"shape {shape!r:.60}; expected at most {MAX_DIMENSIONS} whole numbers")
        if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(name, 8, f"data_offsets {offsets!r:.60}; expected where it starts and where it ends")
        start, end = offsets
        nbytes = math.prod(shape) * DTYPES[dtype]
        if end - start != nbytes:
            raise self._error(name, base + start, f"{end - start} bytes; {dtype} of shape {shape} takes {nbytes}")
        if base + end > len(self.mapped.data):
            raise self._error(
                name, base + start, f"the tensor ends at byte {base + end}, the file at {len(self.mapped.data)}; "
                "it is incomplete, download it again"
            )  # fmt: skip
        return StoredTensor(name, dtype, tuple(shape), base + start, nbytes)

    def _check_places(self, tensors: list[StoredTensor], base: int) -> None:
        at = base
        for tensor in sorted(tensors, key=lambda each: (each.start, each.nbytes)):
            if tensor.start != at:
                relation = "overlaps the tensor before it" if tensor.start < at else "leaves a gap before it"
                raise self._error(tensor.name, tensor.start, f"{relation}; expected byte {at}")
            at += tensor.nbytes
        if at != len(self.mapped.data):
            raise self._error(
                "file", at, f"{len(self.mapped.data) - at} bytes behind the last tensor; download it again"
            )


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 2**63 for each in value)
