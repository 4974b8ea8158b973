"""Every kernel as PTX. Where there is no NVIDIA GPU they are compiled only, and a test that would run one says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edgeinfer.metal_kernels.specs import KERNELS
from tests.metal_kernels import cuda
from tests.metal_kernels.blocks import worst
from tests.metal_kernels.emulator import emulated
from tests.metal_kernels.launches import LAUNCHES

pytestmark = pytest.mark.usefixtures("emulator_only")


def test_a_launch_of_every_kernel() -> None:
    assert {kernel for launch in LAUNCHES.values() for kernel in launch.kernels} == set(KERNELS)


@pytest.mark.parametrize("name", LAUNCHES)
def test_it_is_right_on_the_cpu_and_compiles_for_nvidia(name: str, tmp_path: Path) -> None:
    """Not run on a GPU here. Where ptxas is installed it takes the text as well."""
    with emulated() as emulator:
        assert worst(*LAUNCHES[name].run()) < 1e-5
    for kernel in emulator.kernels.values():
        text = cuda.ptx(kernel)
        assert f".visible .entry {cuda.ENTRY}" in text
        if assembler := shutil.which("ptxas"):
            (tmp_path / "kernel.ptx").write_text(text)
            command = [assembler, "-arch=sm_90", "-o", str(tmp_path / "kernel.cubin"), str(tmp_path / "kernel.ptx")]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", LAUNCHES)
def test_it_is_right_on_an_nvidia_gpu(name: str) -> None:
    """Under ``compute-sanitizer --tool racecheck python -m pytest`` this is a second opinion on races."""
    if reason := cuda.obstacle():
        pytest.skip(f"compiled to PTX only, no NVIDIA GPU here: {reason}")
    with emulated(engine=cuda.run):
        assert worst(*LAUNCHES[name].run()) < 1e-5
