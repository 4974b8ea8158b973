"""The way to llama.cpp: is it installed, what can it do, what did it say.

Nothing here imports ``llama_cpp`` before it is asked to. llama.cpp writes its log to stderr unless told otherwise; here
it goes to Python's logging, and what it said last becomes the reason in an exception.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import logging
import os
import re
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from edgeinfer.errors import BackendUnavailable, CorruptFile, EdgeInferError, MemoryLimit, UnsupportedModel
from edgeinfer.sanitize import sanitize

INSTALL = "pip install 'edgeinfer[llama-cpp]'"
INSTALL_CUDA = (
    "CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.4'"
)

_logger = logging.getLogger(__name__)
_logger.addHandler(logging.NullHandler())  # without a handler Python itself would print warnings


def installed() -> bool:
    """Whether llama-cpp-python is there, without importing it."""
    return importlib.util.find_spec("llama_cpp") is not None


def nvidia_present() -> bool:
    """Whether this machine seems to have an NVIDIA GPU and its driver; starts no process."""
    return (
        Path("/dev/nvidia0").exists()
        or shutil.which("nvidia-smi") is not None
        or ctypes.util.find_library("cuda") is not None
    )


def gpu_offload() -> bool:
    """Whether the installed build sees a GPU that it can compute on. Imports llama.cpp."""
    return installed() and bool(library().api.llama_supports_gpu_offload())


def install_hint() -> str:
    """The one command that installs llama.cpp for this machine.

    On most machines ``pip install 'edgeinfer[llama-cpp]'``. With an NVIDIA GPU the CUDA build, compiled on the spot
    (it needs the CUDA toolkit and a C++ compiler)::

        CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.4'
    """
    return INSTALL_CUDA if nvidia_present() else INSTALL


class Log:
    """What llama.cpp says: everything goes to logging at DEBUG, the last warnings and errors are kept as lines."""

    _WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=64)
        self._level = 0
        self.observer: Callable[[str], None] = lambda line: None

    def write(self, level: int, text: bytes, _: object) -> None:
        """A ``ggml_log_callback``: one message, or more of the last one."""
        line = sanitize(text.decode("utf-8", "replace").strip(), single_line=True)
        if level != self._CONTINUED:
            self._level = level
            if level in (self._WARNING, self._ERROR):
                self._lines.append(line)
        elif self._level in (self._WARNING, self._ERROR):
            self._lines.append(self._lines.pop() + line)
        self.observer(line)
        _logger.debug("%s", line)

    def reason(self) -> str:
        """The most telling line since ``clear``, without the names of the functions that passed it on."""
        telling = [line for line in self._lines if "error" in line] or list(self._lines) or ["it gave no reason"]
        return re.sub(r"^(\w+: |error loading model( \w+)?: )+", "", telling[0])[:300]

    def clear(self) -> None:
        self._lines.clear()


@dataclass(frozen=True, slots=True)
class Library:
    """llama.cpp's C functions (``api.llama_*``), initialized once and silent."""

    api: Any
    log: Log
    callback: Any  # llama.cpp holds its address


@cache
def library() -> Library:
    """Imports llama-cpp-python; raises BackendUnavailable with the command that installs it."""
    if not installed():
        raise BackendUnavailable(f"the llama.cpp backend is not installed; run: {INSTALL}", INSTALL)
    try:
        api = import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        reason = sanitize(str(error), single_line=True)
        raise BackendUnavailable(
            f"llama-cpp-python does not load ({reason}); reinstall it: {INSTALL}", INSTALL
        ) from None
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a failed assertion starts a debugger that prints to stdout
    log = Log()
    callback = api.llama_log_callback(log.write)
    api.llama_log_set(callback, None)
    api.llama_backend_init()
    return Library(api, log, callback)


_FAILURES: tuple[tuple[str, Callable[[Path, str, str], EdgeInferError]], ...] = (
    (
        r"unknown model architecture: '(.*)'",
        lambda path, name, _: UnsupportedModel(
            f"{path.name}: llama.cpp does not know the architecture {name!r}; a newer one may: {INSTALL} --upgrade",
            path,
            "general.architecture",
            name,
        ),
    ),
    (
        r"unknown pre-tokenizer type: '(.*)'",
        lambda path, name, _: UnsupportedModel(
            f"{path.name}: llama.cpp does not know the pre-tokenizer {name!r}", path, "tokenizer.ggml.pre", name
        ),
    ),
    (
        r"unknown tokenizer: '(.*)'",
        lambda path, name, _: UnsupportedModel(
            f"{path.name}: llama.cpp does not know the tokenizer {name!r}", path, "tokenizer.ggml.model", name
        ),
    ),
    (r"tensor '(.*?)'", lambda path, name, reason: CorruptFile(path, name, None, reason)),
    (
        r"(unable to allocate|failed to allocate|out of memory)",
        lambda path, _, reason: MemoryLimit(
            f"{path.name} does not fit: llama.cpp says {reason}; take a smaller model",
            path.stat().st_size,
            psutil.virtual_memory().available,
        ),
    ),
    (r"key not found in model: (\S+)", lambda path, name, reason: CorruptFile(path, name, None, reason)),
    (r"key (\S+) has wrong", lambda path, name, reason: CorruptFile(path, name, None, reason)),
)


def load_failure(path: Path, reason: str) -> EdgeInferError:
    """The exception for a file that llama.cpp refused, from its own words."""
    for pattern, make in _FAILURES:
        if match := re.search(pattern, reason):
            return make(path, match[1], reason)
    return UnsupportedModel(f"{path.name}: llama.cpp cannot load it: {reason}", path)
