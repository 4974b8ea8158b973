"""Every malformed file: the right error, one line, quickly, in little memory."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from edgeinfer.errors import CorruptFile, ModelError, UnsupportedModel
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import open_gguf
from tests.formats.craft import SETTINGS
from tests.formats.malformed import CASES, SETTINGS_CASES, Case

EVERY = [*CASES, *SETTINGS_CASES]


def read_settings(path: Path, wanted: str) -> None:
    """Opens the file and reads the one setting that the case spoils, as a model would."""
    with open_gguf(path) as file:
        config = Config.from_gguf(file)
        key = wanted.removeprefix("llama.")
        if key == "attention.layer_norm_rms_epsilon":
            config.read(key, float, minimum=0)
        elif key in SETTINGS:
            config.read(key, int)


def failure(case: Case, folder: Path) -> ModelError:
    path = folder / "model.gguf"
    path.write_bytes(case.data)
    with pytest.raises(ModelError) as caught:
        read_settings(path, case.names)
    return caught.value


def test_there_are_enough_kinds() -> None:
    repeated = [name for name, count in Counter(case.name for case in EVERY).items() if count > 1]
    assert not repeated
    assert len(CASES) >= 250


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_the_error_names_the_place(case: Case, tmp_path: Path) -> None:
    error = failure(case, tmp_path)
    message = str(error)
    assert type(error) is case.error, message
    assert error.exit_code == 2
    assert error.path == tmp_path / "model.gguf"
    assert message.isprintable()
    assert len(message) < 400
    if isinstance(error, CorruptFile):
        assert error.field == case.names or not case.names
        if error.offset is None:
            assert "missing" in message
            return
        assert 0 <= error.offset <= len(case.data)
        assert message.startswith(f"model.gguf: {error.field} at byte {error.offset}: ")
        assert case.at is None or error.offset == case.at, message
    else:
        assert isinstance(error, UnsupportedModel)
        assert error.setting == case.names
        at = "" if case.at is None else f"{case.at}: "
        assert message.startswith(f"model.gguf: {case.names} at byte {at}")


def test_each_is_refused_quickly(tmp_path: Path) -> None:
    """p99 under 100 ms, the promise that this suite is about."""
    times = []
    for case in EVERY:
        path = tmp_path / "model.gguf"
        path.write_bytes(case.data)
        start = time.perf_counter()
        with pytest.raises(ModelError):
            read_settings(path, case.names)
        times.append(time.perf_counter() - start)
    times.sort()
    p99 = times[int(0.99 * len(times))]
    print(
        f"{len(times)} files: p50 {times[len(times) // 2] * 1e3:.3f} ms, p99 {p99 * 1e3:.2f}, max {times[-1] * 1e3:.2f}"
    )
    assert p99 < 0.1


def test_each_is_refused_in_little_memory(tmp_path: Path) -> None:
    peaks = {}
    for case in EVERY:
        path = tmp_path / "model.gguf"
        path.write_bytes(case.data)
        tracemalloc.start()
        try:
            with pytest.raises(ModelError):
                read_settings(path, case.names)
            peaks[case.name] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    worst = max(peaks, key=peaks.__getitem__)
    print(f"most memory: {peaks[worst] / 2**20:.2f} MiB for {worst}")
    assert peaks[worst] < 64 << 20
