"""The reader of safetensors against the format's own library, and against files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from edgeinfer.errors import CorruptFile, EdgeInferError
from edgeinfer.formats.safetensors import SafetensorsFile
from tests.converted.writing import raw_safetensors

ROW: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def header(**rows: Any) -> bytes:
    return json.dumps(rows).encode()


def test_tensors_are_those_of_the_library(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    kinds = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
    tensors = {f"t{i}": (random.standard_normal((i + 1, 3)) * 9).astype(kind) for i, kind in enumerate(kinds)}
    tensors["scalar"], tensors["empty"] = np.array(3, np.float32), np.zeros((0, 4), np.float16)
    safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors", {"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert file.tensors[name].shape == expected.shape
        assert file.bytes_of(name).tobytes() == expected.tobytes()
    file.close()


LIES = {
    "a header longer than the file": (b"{}", b"", 1 << 40, "a header of 1099511627776 bytes"),
    "a header of 200 MB": (b"{}", b"", 200_000_000, "are read"),
    "no JSON": (b"{nonsense", b"", None, "no JSON"),
    "deep JSON": (b'{"a":' * 100_000, b"", None, "no JSON"),
    "an array": (b"[]", b"", None, "no object"),
    "a duplicate tensor": (b'{"a":%b,"a":%b}' % (header(**ROW), header(**ROW)), bytes(8), None, "a duplicate key"),
    "a duplicate field": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[2]}}', bytes(8), None, "a duplicate key"),
    "an unknown dtype": (header(a=ROW | {"dtype": "Q9"}), bytes(8), None, "dtype 'Q9'; known are"),
    "a row that is no object": (header(a=[1, 2]), bytes(8), None, "expected dtype, shape and data_offsets"),
    "a field too many": (header(a=ROW | {"x": 1}), bytes(8), None, "expected dtype, shape and data_offsets"),
    "a negative size": (header(a=ROW | {"shape": [-2]}), bytes(8), None, "whole numbers"),
    "a true size": (header(a=ROW | {"shape": [True]}), bytes(8), None, "whole numbers"),
    "a huge size": (header(a=ROW | {"shape": [2**62, 2**62]}), bytes(8), None, "8 bytes; F32 of shape"),
    "nine dimensions": (header(a=ROW | {"shape": [1] * 9}), bytes(8), None, "at most 8 whole numbers"),
    "offsets backwards": (header(a=ROW | {"data_offsets": [8, 0]}), bytes(8), None, "where it starts"),
    "offsets behind the end": (header(a=ROW), bytes(7), None, "it is incomplete, download it again"),
    "too few bytes": (header(a=ROW | {"data_offsets": [0, 4]}), bytes(4), None, "4 bytes; F32 of shape"),
    "an overlap": (header(a=ROW, b=ROW | {"data_offsets": [4, 12]}), bytes(12), None, "overlaps the tensor before it"),
    "the same place twice": (header(a=ROW, b=ROW), bytes(8), None, "overlaps the tensor before it"),
    "a gap": (header(a=ROW, b=ROW | {"data_offsets": [9, 17]}), bytes(17), None, "leaves a gap before it"),
    "bytes behind the last": (header(a=ROW), bytes(9), None, "1 bytes behind the last tensor"),
    "a name with an escape": (header(**{"a\x1b[2J": ROW}), bytes(8), None, "control characters"),
    "no name": (header(**{"": ROW}), bytes(8), None, "a name that is empty"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused_by_name(tmp_path: Path, lie: str) -> None:
    text, data, length, message = LIES[lie]
    path = raw_safetensors(tmp_path / "m.safetensors", text, data, length)
    with pytest.raises(CorruptFile) as caught:
        SafetensorsFile(path)
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_damage_anywhere_is_an_error_of_ours_or_none(tmp_path: Path) -> None:
    """Random bytes changed, cut or added: the reader refuses or reads, and never does anything else."""
    random = np.random.default_rng(11)
    rows = {f"t{i}": {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i in range(4)}
    whole = bytearray(raw_safetensors(tmp_path / "m.safetensors", header(**rows), bytes(32)).read_bytes())
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for at in random.integers(0, len(damaged), 3):
            damaged[at] = random.integers(0, 256)
        cut = damaged[: random.integers(0, len(damaged) + 1)] if random.random() < 0.3 else damaged
        (tmp_path / "m.safetensors").write_bytes(cut)
        try:
            SafetensorsFile(tmp_path / "m.safetensors").close()
        except EdgeInferError:
            refused += 1
    assert refused > 200
