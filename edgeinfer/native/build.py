"""Builds the extension with CMake as the package is installed; without a compiler the package installs all the same.

Setuptools loads this file by its path (``[tool.setuptools.cmdclass]``), so it imports nothing of the package.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

from setuptools import Extension
from setuptools.command.build_ext import build_ext

sources = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("sources.py"))))
ROOT: Path = sources.ROOT


class BuildNative(build_ext):  # type: ignore[misc]
    """``edgeinfer.native._primitives``, and beside it a note of the MLX and the sources that it was made of."""

    def build_extension(self, ext: Extension) -> None:
        if sys.platform != "linux":
            self.announce("the native path is for Linux: on a Mac, Metal does its work", level=2)
            return
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        note = sources.note(version("mlx"))
        there = ROOT / "edgeinfer" / "native" / target.name
        if there.is_file() and sources.read_note(_note_beside(there)) == tuple(note.split()):
            self.announce("the native path in this folder was built of the same sources", level=2)
            if there != target:
                self.copy_file(str(there), str(target))
                _note_beside(target).write_text(note, encoding="ascii")
            return
        build = Path(self.build_temp).resolve() / "native"
        options = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}")
        try:
            _run("cmake", "-S", str(ROOT / "edgeinfer" / "native"), "-B", str(build), *options)
            _run("cmake", "--build", str(build))
        except (OSError, subprocess.CalledProcessError) as error:
            self.warn(f"the native path was not built ({error}); edgeinfer works without it, more slowly")
            return
        self.copy_file(str(build / target.name), str(target))
        _note_beside(target).write_text(note, encoding="ascii")

    def copy_extensions_to_source(self) -> None:
        """For editable installs: takes the note along."""
        super().copy_extensions_to_source()
        built = _note_beside(Path(self.build_lib) / "edgeinfer" / "native" / "_primitives")
        if built.is_file():
            self.copy_file(str(built), str(ROOT / "edgeinfer" / "native" / built.name))

    def get_source_files(self) -> list[str]:
        """What a source distribution has to hold, relative to its root."""
        return [str(path.relative_to(ROOT)) for path in sources.source_files()]


def _note_beside(extension: Path) -> Path:
    return extension.with_name(sources.NOTE.name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
