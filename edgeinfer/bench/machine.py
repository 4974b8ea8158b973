"""The machine that a measurement was made on, as far as a reader needs to know it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

ISA = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""Instruction sets that kernels choose by, in the words of /proc/cpuinfo."""

PACKAGES = ("edgeinfer", "mlx", "llama-cpp-python", "mlx-lm", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    system: str
    cpu: str
    cores: int  # physical
    logical_cores: int
    isa: tuple[str, ...]
    memory: int  # bytes
    load: float  # processes that wanted to run over the last minute, as the bench began
    python: str
    versions: dict[str, str]


def this_machine() -> Machine:
    """This one, now."""
    info = _cpu_info()
    logical = os.cpu_count() or 1
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=info.get("model name") or _sysctl("machdep.cpu.brand_string") or platform.processor() or "unknown",
        cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        isa=tuple(name for name in ISA if name in (info.get("flags") or info.get("Features") or "").split()),
        memory=psutil.virtual_memory().total,
        load=os.getloadavg()[0],
        python=platform.python_version(),
        versions={name: found for name in PACKAGES if (found := _version(name))},
    )


def _cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _sysctl(name: str) -> str:
    """What macOS says; empty elsewhere."""
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
