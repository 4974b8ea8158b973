"""Damaged copies of good files: whatever the damage, a verdict in time and nothing but our own errors.

60 seconds in CI, 5 elsewhere. A failure is shrunk by Hypothesis and printed as the edits that cause it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from edgeinfer.errors import ModelError
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import open_gguf
from tests.formats.craft import DATA, KEYS, TENSORS, gguf, sample
from tests.tiny import tiny_gguf

SECONDS = 60 if os.environ.get("CI") else 5
LEAST = 100
INTERESTING = [0, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]

Edit = tuple[str, int, int]
places = st.integers(0, 2**20)
edits = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(0, 7)),
    st.tuples(st.just("byte"), places, st.integers(0, 255)),
    st.tuples(st.just("number"), places, st.sampled_from(INTERESTING)),
    st.tuples(st.just("cut"), places, st.just(0)),
    st.tuples(st.just("drop"), places, st.integers(1, 64)),
    st.tuples(st.just("repeat"), places, st.integers(1, 64)),
    st.tuples(st.just("splice"), places, places),
)


def edited(data: bytes, other: bytes, changes: list[Edit]) -> bytes:
    for kind, place, value in changes:
        at = place % (len(data) + 1)
        match kind:
            case "flip":
                data = data[:at] + bytes(byte ^ 1 << value for byte in data[at : at + 1]) + data[at + 1 :]
            case "byte":
                data = data[:at] + bytes([value]) + data[at + 1 :]
            case "number":
                data = data[:at] + value.to_bytes(8, "little") + data[at + 8 :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[at + value :]
            case "repeat":
                data = data[: at + value] + data[at:]
            case "splice":
                data = data[:at] + other[value % (len(other) + 1) :]
    return data


def use(path: Path) -> None:
    """All that a caller does before weights are used: open, settings, the blocks' extents."""
    with open_gguf(path) as file:
        for name in file.tensors:
            blocks = file.blocks(name)
            assert blocks.nbytes == file.tensors[name].nbytes
            blocks[:, -1].sum()  # touches each row's last byte
        config = Config.from_gguf(file)
        config.read("block_count", int, 1)
        config.read("attention.head_count", int, 1)
        config.expect("rope.scaling.type", None, "linear")
        config.unread(["context_length"])


def refusal(path: Path) -> ModelError | None:
    """The error that a file deserves, None for a file that is still sound. Anything else is a failure of the test."""
    try:
        use(path)
    except ModelError as error:
        return error
    return None


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("good")
    writer = GGUFWriter(folder / "split.gguf", "llama", split_max_tensors=1)
    for number in range(2):
        writer.add_tensor(f"t{number}", np.ones((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tiny = tiny_gguf(folder / "tiny.gguf", codec="q4_0")
    shard = folder / "split-00001-of-00002.gguf"
    return [sample().data, sample(version=2).data, gguf(KEYS, TENSORS, DATA), tiny.read_bytes(), shard.read_bytes()]


def test_damaged_files_raise_only_our_errors(good_files: list[bytes], tmp_path: Path) -> None:
    for data in good_files[:4]:
        path = tmp_path / "good.gguf"
        path.write_bytes(data)
        open_gguf(path).close()
    end = time.monotonic() + SECONDS
    path = tmp_path / "damaged.gguf"
    tried = accepted = rounds = 0
    indices = st.integers(0, len(good_files) - 1)

    def over() -> bool:
        """A busy machine is given longer, so that enough are tried."""
        return time.monotonic() > end and tried > LEAST

    def check(base: int, other: int, changes: list[Edit]) -> None:
        nonlocal tried, accepted
        if over():
            return
        data = edited(good_files[base], good_files[other], changes)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        tried += 1
        start = time.perf_counter()
        error = refusal(path)
        assert time.perf_counter() - start < 1
        accepted += error is None
        assert str(error).isprintable()
        assert len(str(error)) < 1000

    while not over():
        rounds += 1
        run = given(indices, indices, st.lists(edits, min_size=1, max_size=6))(check)
        quiet = settings(
            max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
        )
        seed(int(time.time()) + rounds)(quiet(run))()
    print(f"{tried} damaged files, {accepted} of them still sound")
    assert 0 < accepted < tried
