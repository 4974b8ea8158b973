"""Good files: golden bytes, files of the ``gguf`` package, both real models, and files that change underneath."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from edgeinfer.errors import CorruptFile, EngineClosed, MemoryLimit, ModelNotFound, UnsupportedModel
from edgeinfer.formats.gguf import GGUFFile, TensorInfo, open_gguf
from edgeinfer.quant.codec import BY_GGML_ID, CODECS
from tests.formats import craft
from tests.formats.craft import KEYS, STR, TENSORS, U32, array, entry, scalar, string, tensor, u32, u64

GOLDEN = bytes.fromhex(
    "47475546 03000000 0100000000000000 0200000000000000"  # magic, version 3, one tensor, two keys
    "0100000000000000 61 07000000 01"  # "a": true
    "0200000000000000 6262 09000000 08000000 0200000000000000"  # "bb": two strings
    "0200000000000000 c3a9 0000000000000000"  # "é", ""
    "0100000000000000 77 02000000 0200000000000000 0300000000000000 00000000 0000000000000000"  # "w": 3 rows of 2, f32
    "0000000000"  # padding up to byte 128
    "0000803f 00000040 00004040 00008040 0000a040 0000c040"  # 1 to 6
)

VALUES: dict[str, tuple[Any, GGUFValueType]] = {
    "t.u8": (255, GGUFValueType.UINT8),
    "t.i8": (-128, GGUFValueType.INT8),
    "t.u16": (65_535, GGUFValueType.UINT16),
    "t.i16": (-32_768, GGUFValueType.INT16),
    "t.u32": (2**32 - 1, GGUFValueType.UINT32),
    "t.i32": (-(2**31), GGUFValueType.INT32),
    "t.f32": (0.15625, GGUFValueType.FLOAT32),
    "t.bool": (True, GGUFValueType.BOOL),
    "t.string": ("日本 👍\n", GGUFValueType.STRING),
    "t.u64": (2**64 - 1, GGUFValueType.UINT64),
    "t.i64": (-(2**63), GGUFValueType.INT64),
    "t.f64": (1e300, GGUFValueType.FLOAT64),
    "t.ints": ([1, -2, 3], GGUFValueType.ARRAY),
    "t.floats": ([0.5, -2.0], GGUFValueType.ARRAY),
    "t.bools": ([True, False, True], GGUFValueType.ARRAY),
    "t.strings": (["", "a", "ü" * 300], GGUFValueType.ARRAY),
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def written(path: Path, alignment: int = 32) -> dict[str, np.ndarray]:
    """A file of the ``gguf`` package with every value type and a tensor of every format it knows."""
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    rng = np.random.default_rng(1)
    stored = {}
    for codec in BY_GGML_ID.values():
        # the package does not know q2_0, and takes a q8_1 block for 40 bytes; ggml says 36
        if codec.name not in ("q2_0", "q8_1"):
            blocks = rng.integers(0, 256, (3, 2 * codec.bytes), np.uint8)
            kind = GGMLQuantizationType(codec.ggml_id)
            writer.add_tensor(f"{codec.name}.weight", blocks, raw_shape=blocks.shape, raw_dtype=kind)
            stored[f"{codec.name}.weight"] = blocks
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def test_golden_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "golden.gguf", GOLDEN)
    with open_gguf(path) as file:
        assert (file.path, file.files, file.version, file.notes) == (path, (path,), 3, ())
        assert dict(file.metadata) == {"a": True, "bb": ["é", ""]}
        assert file.field_offset("a") == 24
        assert file.field_offset("bb") == 38
        assert dict(file.tensors) == {"w": TensorInfo("w", (3, 2), CODECS["f32"], 128, 24)}
        blocks = file.blocks("w")
        assert (blocks.shape, blocks.dtype, blocks.flags.writeable) == ((3, 8), np.uint8, False)
        np.testing.assert_array_equal(blocks.view("<f4"), [[1, 2], [3, 4], [5, 6]])


def test_version_2_reads_alike(tmp_path: Path) -> None:
    with (
        open_gguf(write(tmp_path / "2.gguf", craft.sample(version=2).data)) as old,
        open_gguf(write(tmp_path / "3.gguf", craft.sample().data)) as new,
    ):
        assert (old.version, new.version) == (2, 3)
        assert old.metadata == new.metadata
        assert old.tensors == new.tensors


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_files_of_the_gguf_package_read_identically(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.gguf"
    stored = written(path, alignment)
    reader = gguf.GGUFReader(path)
    with open_gguf(path) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert {key: file.metadata[key] for key in VALUES} == {key: value for key, (value, _) in VALUES.items()}
        for name, field in reader.fields.items():
            if not name.startswith("GGUF."):
                assert file.metadata[name] == field.contents()
                assert file.field_offset(name) == field.offset
        assert [info.name for info in file.tensors.values()] == [theirs.name for theirs in reader.tensors]
        for theirs in reader.tensors:
            info = file.tensors[theirs.name]
            assert info.shape == tuple(reversed(theirs.shape.tolist()))
            assert (info.offset, info.nbytes) == (theirs.data_offset, theirs.n_bytes)
            assert info.codec.ggml_id == theirs.tensor_type
            np.testing.assert_array_equal(file.blocks(theirs.name), stored[theirs.name])


@pytest.mark.real_model
def test_a_real_model_agrees_with_the_gguf_package(smollm2_path: Path) -> None:
    """The smaller one: the package takes minutes for a vocabulary of 262,144."""
    path = smollm2_path
    reader = gguf.GGUFReader(path)
    start = time.perf_counter()
    file = open_gguf(path)
    print(f"{path.name}: opened in {(time.perf_counter() - start) * 1e3:.1f} ms")
    with file:
        for name, field in reader.fields.items():
            if not name.startswith("GGUF."):
                ours, theirs = file.metadata[name], field.contents()
                assert ours == theirs or np.isnan(theirs).all()
        for tensor_ in reader.tensors:
            info = file.tensors[tensor_.name]
            assert info.shape == tuple(reversed(tensor_.shape.tolist()))
            assert (info.offset, info.nbytes) == (tensor_.data_offset, tensor_.n_bytes)
            assert np.array_equal(
                file.blocks(tensor_.name)[-1], tensor_.data.view(np.uint8).reshape(-1, info.row_bytes)[-1]
            )


def test_dimensions_rows_and_row_bytes(tmp_path: Path) -> None:
    rows = [tensor("one", [32], 8), tensor("four", [64, 3, 1, 2], 2, 64)]
    with open_gguf(write(tmp_path / "m.gguf", craft.gguf([], rows, bytes(64 + 216)))) as file:
        one, four = file.tensors["one"], file.tensors["four"]
        assert (one.shape, one.rows, one.row_bytes, one.nbytes) == ((32,), 1, 34, 34)
        assert (four.shape, four.rows, four.row_bytes, four.nbytes) == ((2, 1, 3, 64), 6, 36, 216)
        assert file.blocks("four").shape == (6, 36)


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [array("empty.numbers", U32, []), array("empty.strings", STR, [])],
        [scalar("empty", STR, "")],
        [scalar("Upper-case key with spaces", STR, "x")],
        [scalar("k" * 65_535, U32, 1)],
        [scalar("general.alignment", U32, 1 << 20)],
    ],
    ids=["nothing", "empty arrays", "empty string", "odd key", "longest key", "largest alignment"],
)
def test_odd_but_sound_metadata_is_read(tmp_path: Path, keys: list[bytes]) -> None:
    with open_gguf(write(tmp_path / "m.gguf", craft.gguf(keys))) as file:
        assert len(file.metadata) == len(keys)
        assert not file.tensors


def test_a_tensor_name_of_64_bytes_is_read(tmp_path: Path) -> None:
    name = "ü" * 32
    with open_gguf(write(tmp_path / "m.gguf", craft.gguf([], [tensor(name, [1])], bytes(4)))) as file:
        assert file.tensors[name].nbytes == 4


def test_bytes_behind_the_last_tensor_are_noted(tmp_path: Path) -> None:
    data = craft.gguf(KEYS, TENSORS, craft.DATA)
    assert open_gguf(write(tmp_path / "padded.gguf", data + bytes(-len(data) % 32))).notes == ()
    with open_gguf(write(tmp_path / "m.gguf", data + b"x" * 1000)) as file:
        assert file.notes == ("m.gguf: 1000 bytes behind the last tensor are ignored",)


def test_blocks_outlive_the_file(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "m.gguf", GOLDEN))
    blocks = file.blocks("w")
    file.close()
    file.close()
    assert blocks.view("<f4")[2, 1] == 6
    with pytest.raises(EngineClosed, match=r"m\.gguf was closed"):
        file.blocks("w")


@pytest.mark.parametrize("size", [0, 100, 151, 153, 5000], ids=lambda size: f"{size} bytes")
def test_a_file_that_changes_size_is_not_touched(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "m.gguf", GOLDEN)
    with open_gguf(path) as file:
        os.truncate(path, size)
        with pytest.raises(CorruptFile, match=f"changed while in use: {size} bytes now, 152 when opened") as caught:
            file.blocks("w")
        assert caught.value.offset == min(size, 152)
        with pytest.raises(CorruptFile):
            file.check_unchanged()


def test_a_file_that_is_written_to_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", GOLDEN)
    with open_gguf(path) as file:
        file.check_unchanged()
        os.utime(path, ns=(0, 0))
        with pytest.raises(CorruptFile, match="changed while in use"):
            file.blocks("w")


def test_a_file_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", GOLDEN)
    with open_gguf(path) as file:
        write(tmp_path / "new", b"").replace(path)
        assert file.blocks("w").shape == (3, 8)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match="no such file"):
        open_gguf(write(tmp_path / "file", b"") / "below.gguf")
    with pytest.raises(ModelNotFound, match="not a path"):
        open_gguf(tmp_path / "nul\0.gguf")
    with pytest.raises(UnsupportedModel, match="a folder; give"):
        open_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsupportedModel, match="a device or a pipe"):
        open_gguf(tmp_path / "pipe")
    with pytest.raises(UnsupportedModel, match="a device or a pipe"):
        open_gguf(Path("/dev/zero"))
    with pytest.raises(CorruptFile, match="cannot be read: File name too long"):
        open_gguf(tmp_path / ("x" * 300))


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "m.gguf", GOLDEN)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CorruptFile, match=r"m\.gguf: file: cannot be read: Permission denied"):
        open_gguf(path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folder = Path("/dev/fd")
    good, bad = write(tmp_path / "good.gguf", GOLDEN), write(tmp_path / "bad.gguf", GOLDEN[:100])
    empty = write(tmp_path / "empty.gguf", b"")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        open_gguf(good).close()
        open_gguf(good)
        for path in (bad, empty):
            with pytest.raises(CorruptFile):
                open_gguf(path)
    gc.collect()
    assert len(list(folder.iterdir())) == before


def test_a_sparse_file_beyond_4_gib_is_read_at_its_end(tmp_path: Path) -> None:
    """Sizes are Python's, not 32 bits."""
    columns, rows = 1 << 20, 1100  # 4.3 GiB of float32
    size = 4 * columns * rows
    path = write(tmp_path / "big.gguf", craft.gguf([], [tensor("big", [columns, rows]), tensor("w", [2], 0, size)]))
    start = path.stat().st_size
    os.truncate(path, start + size)
    with path.open("ab") as end:
        end.write(b"12345678")
    with open_gguf(path) as file:
        assert file.tensors["w"].offset == start + size
        assert file.blocks("w").tobytes() == b"12345678"
        assert file.blocks("big").shape == (rows, 4 * columns)


def test_importing_the_reader_loads_no_numpy() -> None:
    code = "import sys, edgeinfer.formats.config as _; print('numpy' in sys.modules, 'mlx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_messages_show_no_control_characters_and_stay_short(tmp_path: Path) -> None:
    key = "k" * 5000
    data = craft.gguf([entry(key, 99, b"\0" * 20), entry("x", STR, string("y"))], alignment=1)
    with pytest.raises(CorruptFile) as caught:
        open_gguf(write(tmp_path / "m.gguf", data))
    assert len(str(caught.value)) < 250
    assert caught.value.field == "k" * 80 + "…"


def test_metadata_beyond_256_mib_is_refused(tmp_path: Path) -> None:
    """Seventeen holes of 16 MiB: the file takes no room on the disk."""
    path = tmp_path / "m.gguf"
    step = 16 << 20
    with path.open("wb") as file:
        file.write(b"GGUF" + u32(3) + u64(0) + u64(17))
        for index in range(17):
            file.write(string(f"k{index:02d}") + u32(STR) + u64(step))
            file.seek(step, os.SEEK_CUR)
        file.truncate()
    with pytest.raises(CorruptFile, match=r"k15 at byte \d+: more than 268435456 bytes of metadata"):
        open_gguf(path)


def test_the_file_is_a_plain_context_manager(tmp_path: Path) -> None:
    with open_gguf(write(tmp_path / "m.gguf", GOLDEN)) as file:
        assert isinstance(file, GGUFFile)
    with pytest.raises(EngineClosed):
        file.check_unchanged()


def test_a_file_that_cannot_be_mapped_for_want_of_memory_is_a_memory_limit(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(GOLDEN)
    full = OSError(errno.ENOMEM, "Cannot allocate memory")
    with patch("edgeinfer.formats.mapping.mmap", side_effect=full), pytest.raises(MemoryLimit, match=r"m\.gguf"):
        open_gguf(file)
