"""Stands in for ``mx.fast.metal_kernel``: compiles the text MLX would hand to Metal with clang, and runs it on the CPU.

Every launch is checked (``shim/runtime.cpp``) and raises ``KernelFault``. One launch at a time in a process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from tests.metal_kernels.text import Kernel, capture, rewrite

SHIM = Path(__file__).with_name("shim")
CLANG = "clang-19"
FOLDER = Path(os.environ.get("EDGEINFER_KERNEL_CACHE", Path(__file__).parents[2] / ".cache" / "metal_kernels"))
METAL = ("-nostdinc", "-D__METAL_VERSION__=310", "-include", "metal_stdlib")
LANGUAGE = (*METAL, "-x", "c++", "-std=c++17", "-ffreestanding", "-fsigned-char", f"-I{SHIM}")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-variable", "-Wno-unknown-pragmas")
COMPILE = (
    *LANGUAGE, "-O1", "-fPIC", "-gline-tables-only", "-ffp-contract=off", "-fno-vectorize",
    "-fno-slp-vectorize", "-ftrivial-auto-var-init=pattern", "-mf16c", "-mfma", "-fno-math-errno", "-fsanitize=thread",
    "-fsanitize=array-bounds,shift,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow",
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
    "-mllvm", "-tsan-instrument-read-before-write=1", "-mllvm", "-tsan-instrument-atomics=0",
    "-mllvm", "-tsan-instrument-func-entry-exit=0",
)  # fmt: skip
NO_EXTENSIONS = ("-Xclang", "-cl-ext=-all,+cl_khr_fp16")  # no double, no generic address space
OPENCL = (*METAL, "-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", *NO_EXTENSIONS, f"-I{SHIM / 'opencl'}")
STRICT = tuple((*language, "-DEI_STRICT", "-fsyntax-only", *WARNINGS) for language in (LANGUAGE, OPENCL))
"""Two languages whose address spaces are types: C++ with attributes, and C++ for OpenCL, which minds casts as well."""
Engine = Callable[[Kernel, dict[str, np.ndarray], set[str], list[int], list[int]], None]
"""What runs a kernel over memory, by buffer, of which some are outputs: grid and threadgroup in threads."""
ORDERS = ("forward", "reverse", "random")
MLX_KERNEL = mx.fast.metal_kernel


class CompileError(Exception):
    """clang refused a kernel."""


@dataclass
class KernelFault(Exception):
    """What a check found: its kind, the line it was found at, and the line of the other access of a race."""

    kind: str
    text: str
    line: str
    other: str = ""

    def __str__(self) -> str:
        return f"{self.kind} at {self.line}: {self.text}" + (f" (other access: {self.other})" if self.other else "")


@dataclass
class Report:
    """Bytes that a launch read and wrote, by buffer; the threadgroup memory of one threadgroup, and the bytes read of
    it by all; fused multiply-adds."""

    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    threadgroup_bytes: int = 0
    threadgroup_read: int = 0
    products: int = 0


class _Site(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("line", ctypes.c_int))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_uint64), ("lead", ctypes.c_uint64),
        ("hole", ctypes.c_uint64),
        ("output", ctypes.c_int), ("read", ctypes.c_uint64), ("written", ctypes.c_uint64),
    )  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p), ("buffers", ctypes.POINTER(_Buffer)), ("count", ctypes.c_int),
        ("grid", ctypes.c_uint * 3), ("group", ctypes.c_uint * 3), ("order", ctypes.c_int), ("seed", ctypes.c_uint),
        ("threadgroup_bytes", ctypes.c_uint64), ("threadgroup_read", ctypes.c_uint64),
        ("products", ctypes.c_uint64), ("kind", ctypes.c_char * 32), ("text", ctypes.c_char * 256),
        ("file", ctypes.c_char * 128), ("line", ctypes.c_int), ("pc", ctypes.c_uint64), ("other_pc", ctypes.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sparse:
    """Bytes of a large input of which the first ``hole`` are zero and are never touched here."""

    data: np.ndarray
    hole: int


@dataclass(eq=False)
class Emulator:
    """``metal_kernel`` has the signature of MLX's. ``order`` is the schedule; ``edit`` plants a fault in a text,
    and ``edits`` counts the places where it fitted. An ``engine`` runs the kernels in place of this one.
    Text that is not ours is not held to the ``strict`` passes. Inputs in ``sparse`` are taken from there."""

    order: str = "forward"
    seed: int = 0
    edit: tuple[str, str] | None = None
    edits: int = 0
    lead: dict[str, int] = field(default_factory=dict)
    sparse: dict[str, Sparse] = field(default_factory=dict, repr=False)
    strict: bool = True
    engine: Engine | None = None
    reports: list[Report] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict, repr=False)
    kernels: dict[str, Kernel] = field(default_factory=dict, repr=False)

    def metal_kernel(self, name: str, input_names: Sequence[str], output_names: Sequence[str], source: str,
                     header: str = "", **options: Any) -> _Compiled:  # fmt: skip
        """What ``mx.fast.metal_kernel`` returns, run here."""
        if self.edit is not None:
            before, after = self.edit
            self.edits += source.count(before) + header.count(before)
            source, header = source.replace(before, after), header.replace(before, after)
        traced = MLX_KERNEL(name, list(input_names), list(output_names), source, header, **options)
        return _Compiled(self, name, tuple(input_names), tuple(output_names), traced)


@contextmanager
def emulated(**options: Any) -> Iterator[Emulator]:
    """Metal kernels run on the CPU meanwhile. Where there is a Metal GPU they run on that, unchecked."""
    emulator = Emulator(**options)
    with patch.object(mx.fast, "metal_kernel", MLX_KERNEL if mx.metal.is_available() else emulator.metal_kernel):
        yield emulator


@dataclass
class _Compiled:
    owner: Emulator
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    traced: Any

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        **call: Any,
    ) -> list[mx.array]:
        owner = self.owner
        arrays = dict(zip(self.inputs, inputs, strict=True))
        shapes = [mx.zeros(array.shape, array.dtype) for array in inputs]
        template = call.get("template") or []

        def trace(*args: mx.array) -> list[mx.array]:
            made: list[mx.array] = self.traced(
                inputs=list(args), output_shapes=output_shapes, output_dtypes=output_dtypes, verbose=True, **call
            )
            return made

        text = capture(trace, shapes)
        variant = ",".join(f"{key}={value}" for key, value in template)
        owner.texts[f"{self.name}<{variant}>"] = text
        kernel = rewrite(text)
        if owner.strict:
            strict(kernel)
        empty = [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        made = dict(zip(self.outputs, empty, strict=True))
        memory = {
            name: owner.sparse[name].data if name in owner.sparse else _bytes(_contents(name, arrays | made))
            for name in kernel.buffers
        }
        group = [min(size, threads) for size, threads in zip(call["threadgroup"], call["grid"], strict=True)]
        owner.kernels[f"{self.name}<{variant}>"] = kernel
        if owner.engine is None:
            owner.reports.append(_run(kernel, memory, made, list(call["grid"]), group, owner))
        else:
            owner.engine(kernel, memory, set(made), list(call["grid"]), group)
        return [_array(memory[name], made[name]) for name in self.outputs]


def _contents(name: str, arrays: dict[str, mx.array]) -> mx.array:
    """A buffer's array: an input, an output, or the shape that goes with one."""
    if name in arrays:
        return arrays[name]
    owner, _, what = name.rpartition("_")
    if what != "shape":
        raise NotImplementedError(f"{name}: only shapes go with inputs here")
    return mx.array(arrays[owner].shape, mx.int32)


def _bytes(array: mx.array) -> np.ndarray:
    return np.array(mx.contiguous(array).reshape(-1).view(mx.uint8))


def _array(data: np.ndarray, like: mx.array) -> mx.array:
    return mx.array(data).view(like.dtype).reshape(like.shape)


def _run(
    kernel: Kernel, memory: dict[str, np.ndarray], outputs: Any, grid: list[int], group: list[int], owner: Emulator
) -> Report:
    path = compiled(kernel, owner.strict)
    buffers = (_Buffer * len(memory))()
    for buffer, (name, data) in zip(buffers, memory.items(), strict=True):
        buffer.name, buffer.data, buffer.size = name.encode(), data.ctypes.data, data.nbytes
        buffer.lead, buffer.output = owner.lead.get(name, 0), name in outputs
        buffer.hole = owner.sparse[name].hole if name in owner.sparse else 0
    entry = ctypes.cast(_library(path).ei_entry, ctypes.c_void_p)
    launch = _Launch(entry, buffers, len(memory), (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*group),
                     ORDERS.index(owner.order), owner.seed)  # fmt: skip
    _runtime().ei_run(ctypes.byref(launch))
    if launch.kind:
        line = f"{launch.file.decode()}:{launch.line}" if launch.line else _line(path, launch.pc)
        other = _line(path, launch.other_pc) if launch.other_pc else ""
        raise KernelFault(launch.kind.decode(), launch.text.decode(), line, other)
    return Report(
        {each.name.decode(): each.read for each in buffers},
        {each.name.decode(): each.written for each in buffers},
        launch.threadgroup_bytes,
        launch.threadgroup_read,
        launch.products,
    )


def _line(path: Path, pc: int) -> str:
    """The line of our text that an address in a compiled kernel belongs to."""
    if not pc:
        return "-"
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = next(int(line.split("-")[0], 16) for line in maps if line.endswith(path.name))
    command = ["addr2line", "-i", "-e", str(path), hex(pc - 1 - base)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [re.sub(r" \(.*", "", line).rpartition("/")[2] for line in printed.stdout.splitlines()]
    return next((line for line in lines if not line.startswith("metal_stdlib")), lines[0])


@cache
def _stamp() -> bytes:
    version = subprocess.run([CLANG, "--version"], capture_output=True, check=True).stdout
    files = sorted(path for path in SHIM.rglob("*") if path.is_file() and path.parent.name != "cuda")
    return version + b"".join(file.read_bytes() for file in files) + repr((COMPILE, STRICT)).encode()


def _cached(source: str, suffix: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER / f"{hashlib.sha256(_stamp() + source.encode()).hexdigest()[:24]}{suffix}"


def _clang(arguments: Sequence[str], source: str = "") -> None:
    done = subprocess.run([CLANG, *arguments], input=source, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)


def compiled(kernel: Kernel, minding: bool = True) -> Path:
    """A shared library with the entry point ``ei_entry``; warnings are errors when ``minding``. Raises CompileError."""
    path = _cached(kernel.source, ".so")
    if not path.exists():
        unit, whole = (path.with_suffix(f".{os.getpid()}.{kind}") for kind in ("o", "tmp"))
        warnings = WARNINGS if minding else ()
        _clang([*COMPILE, *warnings, "-c", "-", "-o", str(unit)], kernel.source)
        _clang(["-shared", str(unit), "-o", str(whole), "-lm"])
        unit.unlink()
        whole.replace(path)
    return path


def strict(kernel: Kernel) -> None:
    """Address spaces as types. Raises CompileError where one is missing or wrong."""
    path = _cached(kernel.source, ".strict")
    if not path.exists():
        for options in STRICT:
            _clang([*options, "-"], kernel.source)
        path.touch()


@cache
def _library(path: Path) -> ctypes.CDLL:
    _runtime()
    return ctypes.CDLL(str(path))


@cache
def _runtime() -> ctypes.CDLL:
    """The fibers and the checks, which kernels find by name."""
    path = _cached("", ".runtime.so")
    if not path.exists():
        whole = path.with_suffix(f".{os.getpid()}.tmp")
        options = ["-std=c++20", "-O2", "-shared", "-fPIC"]
        _clang([*options, str(SHIM / "runtime.cpp"), "-o", str(whole), "-lstdc++", "-lm"])
        whole.replace(path)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
