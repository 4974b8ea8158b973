"""The same text for NVIDIA GPUs: compiled to PTX by clang and, where there is a driver and a GPU, run through it."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache

import numpy as np

from tests.metal_kernels.emulator import CLANG, METAL, SHIM, CompileError
from tests.metal_kernels.text import Kernel

OPTIONS = (
    *METAL, "-x", "c++", "-std=c++17", "-ffreestanding", "-fsigned-char", f"-I{SHIM / 'cuda'}",
    "--target=nvptx64-nvidia-cuda", "-march=sm_80", "-O2", "-ffp-contract=off", "-S", "-o", "-", "-",
)  # fmt: skip
ENTRY = "ei_entry"


def ptx(kernel: Kernel) -> str:
    """Raises CompileError."""
    done = subprocess.run([CLANG, *OPTIONS], input=kernel.cuda, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


class DriverError(Exception):
    """What CUDA's driver answered instead of success."""


@cache
def _driver() -> ctypes.CDLL:
    """With a context on the first GPU. Raises DriverError, or OSError where there is no driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuInit(0))
    _check(driver.cuDeviceGet(ctypes.byref(device), 0))
    _check(driver.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    return driver


def obstacle() -> str:
    """Why nothing can be run here; empty where it can."""
    try:
        _driver()
    except (OSError, DriverError) as error:
        return str(error)
    return ""


def _check(code: int) -> None:
    if code:
        raise DriverError(f"CUDA's driver answered {code}")


def run(
    kernel: Kernel, memory: dict[str, np.ndarray], outputs: set[str], grid: list[int], threadgroup: list[int]
) -> None:
    """Runs a kernel over ``memory``, bytes by buffer; what it writes is put into those of ``outputs``."""
    driver = _driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), ptx(kernel).encode()))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, ENTRY.encode()))
    pointers = {name: ctypes.c_uint64() for name in kernel.buffers}
    for name, pointer in pointers.items():
        data = memory[name]
        _check(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(data.nbytes, 16))))
        _check(driver.cuMemcpyHtoD_v2(pointer, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)))
    arguments = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers.values()))
    blocks = [threads // size for threads, size in zip(grid, threadgroup, strict=True)]
    _check(driver.cuLaunchKernel(function, *blocks, *threadgroup, 0, None, arguments, None))
    _check(driver.cuCtxSynchronize())
    for name, pointer in pointers.items():
        if name in outputs:
            data = memory[name]
            _check(driver.cuMemcpyDtoH_v2(data.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(data.nbytes)))
        _check(driver.cuMemFree_v2(pointer))
    _check(driver.cuModuleUnload(module))
