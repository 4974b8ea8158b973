"""The C++ core without Python or MLX: under sanitizers, and for ARM under emulation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "edgeinfer" / "native"
ARM = "aarch64-linux-gnu"
QUICK = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
WIDTHS = {"address,undefined": "avx2;avx512", "thread": "avx2"}
"""What is built beside the generic kernels: every vector width once, and for races, which no width changes, one."""

pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="the native path is for Linux"),
    pytest.mark.skipif(
        not (shutil.which("cmake") and shutil.which("ninja")), reason="no cmake or ninja: pip install both"
    ),
    pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler: apt-get install g++"),
]


def built(folder: Path, *options: str) -> Path:
    """The core's own check, built with the same CMake file as the extension."""
    for command in (["cmake", "-S", str(SOURCE), "-B", str(folder), "-G", "Ninja", "-DCHECK=ON", *options],
                    ["cmake", "--build", str(folder)]):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / "core_check"


def check(*command: str, **environment: str) -> None:
    done = subprocess.run([*command, "--quick"], capture_output=True, text=True, env={**os.environ, **environment})
    assert not done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    assert "generic: ok" in done.stdout


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_kernels_run_clean(tmp_path: Path, sanitizers: str) -> None:
    """Bounds, undefined behaviour and races, with two callers at once among what is checked."""
    isas = f"-DISAS=generic;{WIDTHS[sanitizers]}"
    check(str(built(tmp_path, f"-DSANITIZE={sanitizers}", isas, *QUICK)), TSAN_OPTIONS="halt_on_error=1")


@pytest.mark.skipif(not shutil.which(f"{ARM}-g++"), reason=f"no compiler for ARM: apt-get install g++-{ARM}")
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no emulator: apt-get install qemu-user")
def test_arm_kernels_compute_the_same(tmp_path: Path) -> None:
    options = [f"-DCMAKE_CXX_COMPILER={ARM}-g++", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    check("qemu-aarch64", str(built(tmp_path, *options, "-DCMAKE_EXE_LINKER_FLAGS=-static", *QUICK)))
