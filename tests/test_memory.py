"""What a model may take is what the machine and the process still have."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from edgeinfer.memory import free_memory, hand_back_memory


def test_free_memory_is_some_of_the_machines() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS binds on Linux alone")
def test_a_limit_of_the_process_counts() -> None:
    program = "from edgeinfer.memory import free_memory; print(free_memory())"
    limited = subprocess.run(["bash", "-c", f"ulimit -v 2000000; {sys.executable} -c '{program}'"], capture_output=True)
    assert 0 < int(limited.stdout) < 2_000_000 * 1024


def test_freed_memory_goes_back_to_the_system() -> None:
    process = psutil.Process()
    blocks = [bytearray(100_000) for _ in range(2000)]
    held = process.memory_info().rss
    blocks[:] = blocks[-1:]
    hand_back_memory()
    assert held - process.memory_info().rss > 100_000_000
