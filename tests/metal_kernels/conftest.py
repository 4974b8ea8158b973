"""What the tests of kernels need: a Metal GPU, or clang 19 to run them on the CPU."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator

import mlx.core as mx
import pytest

from edgeinfer import ops
from edgeinfer.metal_kernels import warmup
from edgeinfer.ops import metal as metal_ops
from tests.metal_kernels.emulator import CLANG, Emulator, emulated

OBSTACLES = (
    warmup.codec_obstacle, warmup.joined_obstacle, warmup.experts_obstacle, warmup.attention_obstacle,
    warmup.sealed_obstacle,
)  # fmt: skip
INSTALL = f"{CLANG} is missing: apt-get install --no-install-recommends clang-19 binutils"


@pytest.fixture(scope="session")
def metal() -> None:
    """Kernels can be run here. A laptop without the compiler skips, CI fails."""
    if mx.metal.is_available():
        return
    reason = INSTALL if shutil.which(CLANG) is None else ""
    if not reason and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        reason = "kernels are emulated on Linux on x86-64 alone: the fibers of shim/runtime.cpp are written for it"
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture
def emulator_only(metal: None) -> None:
    """What the emulator alone can show: its checks, its schedules, its traffic."""
    if mx.metal.is_available():
        pytest.skip("a Metal GPU runs the kernels here; the emulator's checks run on Linux")


@pytest.fixture
def on_metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """New models take the Metal path, as they do on a Mac."""
    monkeypatch.setattr(ops, "here", metal_ops)
    monkeypatch.setattr(ops, "fused", False)
    _forget()
    with emulated() as emulator:
        yield emulator
    _forget()


def _forget() -> None:
    for obstacle in OBSTACLES:
        obstacle.cache_clear()
