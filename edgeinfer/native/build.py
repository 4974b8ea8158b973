"""Builds the extension with CMake as the package is installed; without a compiler the package installs all the same.

Setuptools loads this file by its path (``[tool.setuptools.cmdclass]``), so it imports nothing of the package.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parents[2]
SOURCES = ("edgeinfer/native/CMakeLists.txt", "edgeinfer/native/core/**/*.*", "edgeinfer/native/mlx/*.*",
           "metal_kernels/include/codecs/*.h")  # fmt: skip


class BuildNative(build_ext):  # type: ignore[misc]
    """``edgeinfer.native._primitives``, and beside it the version of MLX that it fits."""

    def build_extension(self, ext: Extension) -> None:
        if sys.platform != "linux":
            self.announce("the native path is for Linux: on a Mac, Metal does its work", level=2)
            return
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = Path(self.build_temp).resolve() / "native"
        options = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}")
        try:
            _run("cmake", "-S", str(ROOT / "edgeinfer" / "native"), "-B", str(build), *options)
            _run("cmake", "--build", str(build))
        except (OSError, subprocess.CalledProcessError) as error:
            self.warn(f"the native path was not built ({error}); edgeinfer works without it, more slowly")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(build / target.name), str(target))
        _version_file(target).write_text(version("mlx") + "\n", encoding="ascii")

    def copy_extensions_to_source(self) -> None:
        """For editable installs: takes the version along."""
        super().copy_extensions_to_source()
        built = _version_file(Path(self.build_lib) / "edgeinfer" / "native" / "_primitives")
        if built.is_file():
            self.copy_file(str(built), str(ROOT / "edgeinfer" / "native" / built.name))

    def get_source_files(self) -> list[str]:
        """What a source distribution has to hold, relative to its root."""
        return sorted(str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern))


def _version_file(extension: Path) -> Path:
    return extension.with_name("built_for.txt")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
