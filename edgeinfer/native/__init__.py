"""CPU kernels in C++, as MLX operations. Built when the package is installed; everything works without, more slowly.

The extension fits one version of MLX, and of nanobind, through which the two share arrays. ``obstacle`` says why it is
not used, and is empty where it is.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from edgeinfer.native.sources import NOTE, fingerprint, read_note

REBUILD = "to build it again: pip install -e ."
REINSTALL = "to get it, reinstall where a C++20 compiler is: pip install --no-cache-dir --force-reinstall edgeinfer"


def _load() -> tuple[Any, str]:
    """The extension, or why there is none."""
    mlx, made_of = read_note(NOTE)
    if made_of and made_of != (fingerprint() or made_of):
        return None, f"the native path was built from other sources than those beside it; {REBUILD}"
    try:
        extension = import_module("edgeinfer.native._primitives")
        if int(extension.argmax(mx.array([[0.0, 1.0]])).item()) != 1:
            return None, f"the native path computes nonsense on this machine; {REINSTALL}"
    except ModuleNotFoundError:
        return None, f"the native path was not built; {REINSTALL}"
    except (ImportError, TypeError):  # missing symbols; arrays that the extension does not know as such
        built = mlx or "another version"
        return None, f"the native path was built for mlx {built} and {version('mlx')} is installed; {REINSTALL}"
    return extension, ""


primitives, obstacle = _load()
