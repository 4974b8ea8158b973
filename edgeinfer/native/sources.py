"""What the extension is compiled from, and the note beside it of what that was: so an old one can be told.

The build loads this file by its path, so it imports nothing of the package.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("edgeinfer/native/CMakeLists.txt", "edgeinfer/native/core/**/*.*", "edgeinfer/native/mlx/*.*",
           "metal_kernels/include/codecs/*.h")  # fmt: skip
NOTE = Path(__file__).with_name("built_for.txt")
"""The version of MLX that the extension was compiled against, and the fingerprint of its sources."""


def source_files() -> list[Path]:
    return sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))


def fingerprint() -> str:
    """Of the sources beside the package; empty where there are none: they are no part of a wheel."""
    if not (ROOT / SOURCES[0]).is_file():
        return ""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def note(mlx: str) -> str:
    """What the build writes for an extension compiled against this version of MLX."""
    return f"{mlx}\n{fingerprint()}\n"


def read_note(path: Path) -> tuple[str, str]:
    """Version and fingerprint; empty where the note does not say."""
    lines = path.read_text(encoding="ascii").split() if path.is_file() else []
    return lines[0] if lines else "", lines[1] if len(lines) > 1 else ""
