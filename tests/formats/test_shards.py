"""Models split over several files: whole from any of them, and exact about what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from edgeinfer.errors import CorruptFile
from edgeinfer.formats.gguf import open_gguf
from tests.formats.craft import ARCHITECTURE, BOOL, I32, STR, U16, gguf, scalar, tensor


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Five shards of two tensors each, by the ``gguf`` package."""
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    writer.add_name("split")
    for number in range(10):
        writer.add_tensor(f"t{number}.weight", np.full((2, 3), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("model-*.gguf"))
    assert [path.name for path in paths] == [f"model-{number:05d}-of-00005.gguf" for number in range(1, 6)]
    return paths


@pytest.mark.parametrize("given", range(5))
def test_any_shard_opens_them_all(shards: list[Path], given: int) -> None:
    with open_gguf(shards[given]) as file:
        assert file.files == tuple(shards)
        assert file.path == shards[0]
        assert file.metadata["general.name"] == "split"
        assert list(file.tensors) == [f"t{number}.weight" for number in range(10)]
        for number in range(10):
            info = file.tensors[f"t{number}.weight"]
            assert info.shard == number // 2
            np.testing.assert_array_equal(file.blocks(info.name).view("<f4"), np.full((2, 3), number))


def test_missing_shards_are_listed(shards: list[Path]) -> None:
    shards[1].unlink()
    with pytest.raises(CorruptFile, match=r"of 5 shards these are missing: 2 \(model-00002-of-00005\.gguf\)"):
        open_gguf(shards[0])
    shards[3].unlink()
    shards[2].unlink()
    with pytest.raises(CorruptFile, match=r"missing: 2-4 \(model-00002-of-00005\.gguf and so on\)") as caught:
        open_gguf(shards[4])
    assert (caught.value.field, caught.value.exit_code) == ("split.count", 2)
    shards[0].unlink()
    write(shards[2], 2, [tensor("x", [1])])
    with pytest.raises(CorruptFile, match="missing: 1-2, 4 "):
        open_gguf(shards[4])


def test_two_copies_of_one_shard_are_named(shards: list[Path]) -> None:
    shutil.copy(shards[0], shards[1])
    with pytest.raises(CorruptFile, match=r"model-00002-of-00005\.gguf holds shard 1"):
        open_gguf(shards[3])


def test_swapped_shards_are_both_named(shards: list[Path]) -> None:
    aside = shards[1].rename(shards[1].with_name("aside"))
    shards[2].rename(shards[1])
    aside.rename(shards[2])
    with pytest.raises(CorruptFile) as caught:
        open_gguf(shards[0])
    assert "model-00002-of-00005.gguf holds shard 3; model-00003-of-00005.gguf holds shard 2" in str(caught.value)
    assert str(caught.value).isprintable()


def write(path: Path, number: int, tensors: list[bytes], **other: tuple[int, object]) -> None:
    """A shard of five that holds four bytes for each tensor."""
    keys = {"split.no": (U16, number), "split.count": (U16, 5), "split.tensors.count": (I32, 10)} | other
    rows = [scalar(key, kind, value) for key, (kind, value) in keys.items() if kind >= 0]
    path.write_bytes(gguf(rows, tensors, bytes(32 * len(tensors))))


def test_foreign_shards_are_named(shards: list[Path]) -> None:
    write(shards[1], 1, [], **{"split.count": (U16, 6)})
    write(shards[2], 2, [], **{"split.tensors.count": (I32, 11)})
    write(shards[3], 3, [], **{"general.architecture": (STR, "qwen2")})
    shards[4].write_bytes(gguf([ARCHITECTURE]))
    with pytest.raises(CorruptFile) as caught:
        open_gguf(shards[0])
    for part in (
        "model-00002-of-00005.gguf has split.count 6, the first 5",
        "model-00003-of-00005.gguf has split.tensors.count 11, the first 10",
        "model-00004-of-00005.gguf has general.architecture 'qwen2', the first 'llama'",
        "model-00005-of-00005.gguf is no shard",
    ):
        assert part in str(caught.value)


def test_a_corrupt_shard_is_named_itself(shards: list[Path]) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:-9])
    with pytest.raises(CorruptFile, match=r"^model-00003-of-00005\.gguf: t5\.weight at byte"):
        open_gguf(shards[0])


def test_a_tensor_in_two_shards_is_named(shards: list[Path]) -> None:
    write(shards[2], 2, [tensor("t3.weight", [1])])
    with pytest.raises(
        CorruptFile, match=r"00003-of-00005\.gguf: t3\.weight at byte .*is in model-00002-of-00005\.gguf too"
    ):
        open_gguf(shards[0])


def test_a_count_of_tensors_that_is_wrong_is_named(shards: list[Path]) -> None:
    write(shards[2], 2, [tensor("t4.weight", [1])])
    with pytest.raises(CorruptFile, match=r"split\.tensors\.count at byte \d+: 10 tensors announced, 9 found"):
        open_gguf(shards[0])


@pytest.mark.parametrize("name", ["renamed.gguf", "model-00001-of-00004.gguf", "model-1-of-5.gguf"])
def test_a_shard_under_another_name_is_refused(shards: list[Path], name: str) -> None:
    with pytest.raises(CorruptFile, match=r"one of 5 shards, so its name must end in -00001-of-00005\.gguf"):
        open_gguf(shards[0].rename(shards[0].with_name(name)))


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("split.count", U16, 0),
        ("split.count", U16, 1025),
        ("split.count", STR, "5"),
        ("split.count", BOOL, True),
        ("split.no", U16, 1024),
        ("split.no", I32, -1),
        ("split.tensors.count", I32, -1),
        ("split.tensors.count", STR, "ten"),
    ],
)
def test_counts_out_of_range_are_named(shards: list[Path], key: str, kind: int, value: object) -> None:
    write(shards[0], 0, [], **{key: (kind, value)})
    for number in range(1, 5):
        write(shards[number], number, [], **({key: (kind, value)} if key == "split.tensors.count" else {}))
    with pytest.raises(CorruptFile, match=rf"{key} at byte \d+: .*; expected a whole number from \d+ to \d+"):
        open_gguf(shards[0])


def test_a_model_of_one_shard_needs_no_special_name(tmp_path: Path) -> None:
    path = tmp_path / "any name.gguf"
    write(path, 0, [], **{"split.count": (U16, 1), "split.no": (-1, None)})
    with open_gguf(path) as file:
        assert file.files == (path,)


def test_the_first_shard_may_hold_no_tensors(tmp_path: Path) -> None:
    """As the ``gguf`` package writes with ``small_first_shard``."""
    writer = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1, small_first_shard=True)
    for number in range(2):
        writer.add_tensor(f"t{number}", np.ones(4, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "m-00001-of-00003.gguf") as file:
        assert [info.shard for info in file.tensors.values()] == [1, 2]
