"""Two engines behind one seam, and the choice between them.

``choose`` reads the file's header alone and says which backend runs it and why; llama.cpp is imported only where it
runs the file, or where an NVIDIA GPU makes it worth asking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer import ops
from edgeinfer.backends.llama_library import gpu_offload, install_hint, installed, nvidia_present
from edgeinfer.errors import BackendUnavailable, BadRequest, UnsupportedModel
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading import fit
from edgeinfer.loading.registry import unsupported

if TYPE_CHECKING:
    from edgeinfer.backends.base import Backend

NAMES = ("auto", "mlx", "llama.cpp")


_CONVERT = "make one with: edgeinfer convert FOLDER MODEL.gguf"


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend for one file, and the reason in a few words for the summary line."""

    name: str
    why: str
    advice: str = ""  # how to get a faster path than the one that is taken

    def load(
        self, path: Path, context: int = 0, threads: int = 0, kv: str = "exact", kept: Path | None = None
    ) -> Backend:
        """Loads the model; call it on the thread that will use it. ``kv``: the format of its keys and values;
        ``kept``: a folder to keep them in."""
        if self.name == "mlx":
            from edgeinfer.backends.mlx import MLXBackend

            return MLXBackend.load(path, context, threads, kv, kept)
        from edgeinfer.backends.llama_cpp import LlamaCppBackend

        return LlamaCppBackend.load(path, context, threads, kv=kv)


def open_draft(threads: int, path: str, backend: str) -> Callable[[], Backend]:
    """Loads a model that drafts for another one; its context is its own to choose."""
    return lambda: Choice(backend, "").load(Path(path), 0, threads)


def choose(gguf: GGUFFile, wanted: str = "auto") -> Choice:
    """MLX where it can run the model, llama.cpp where it cannot or where an NVIDIA GPU and a CUDA build are present.

    Raises UnsupportedModel or BackendUnavailable when the wanted backend, or with ``auto`` every one, is out.
    """
    if wanted not in NAMES:
        raise BadRequest(f"backend={wanted!r}: expected one of {', '.join(NAMES)}", "backend")
    if gguf.path.is_dir():
        return _choose_for_folder(gguf, wanted)
    if wanted == "llama.cpp":
        if not installed():
            raise BackendUnavailable(f"llama.cpp is not installed; install it with: {install_hint()}", install_hint())
        return Choice("llama.cpp", "asked for")
    obstacle = unsupported(gguf)
    if wanted == "mlx":
        if obstacle:
            raise UnsupportedModel(f"{obstacle}; --backend llama.cpp may run it", gguf.path)
        return Choice("mlx", "asked for", _advice())
    obstacle = obstacle or fit.obstacle(gguf)
    if obstacle and not installed():
        raise BackendUnavailable(
            f"MLX cannot run this: {obstacle}; llama.cpp may, install it with: {install_hint()}", install_hint()
        )
    if obstacle:
        return Choice("llama.cpp", f"not MLX: {obstacle}")
    if nvidia_present() and gpu_offload():
        return Choice("llama.cpp", "an NVIDIA GPU and a CUDA build are present")
    return Choice("mlx", f"MLX runs {gguf.metadata['general.architecture']} on {ops.device()}", _advice())


def _choose_for_folder(folder: GGUFFile, wanted: str) -> Choice:
    """MLX alone reads converted weights."""
    if wanted == "llama.cpp":
        raise UnsupportedModel(f"{folder.path.name}: llama.cpp reads GGUF alone; {_CONVERT}", folder.path)
    if obstacle := unsupported(folder) or fit.obstacle(folder):
        raise UnsupportedModel(f"{obstacle}; llama.cpp may run it as GGUF: {_CONVERT}", folder.path)
    return Choice("mlx", "llama.cpp reads no converted weights", _advice())


def _advice() -> str:
    return "" if ops.on_gpu else ops.obstacle
