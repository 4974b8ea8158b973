"""Two engines behind one seam, and the choice between them.

``choose`` reads the file's header alone and says which backend runs it and why; nothing heavy is imported before
that is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.errors import BackendUnavailable, BadRequest, UnsupportedModel
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading import fit
from edgeinfer.loading.registry import unsupported

if TYPE_CHECKING:
    from edgeinfer.backends.base import Backend

NAMES = ("auto", "mlx", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend for one file, and the reason in a few words for the summary line."""

    name: str
    why: str

    def load(self, path: Path, context: int = 0, threads: int = 0) -> Backend:
        """Loads the model; call it on the thread that will use it."""
        if self.name == "mlx":
            from edgeinfer.backends.mlx import MLXBackend

            return MLXBackend.load(path, context, threads)
        from edgeinfer.backends.llama_cpp import LlamaCppBackend

        return LlamaCppBackend.load(path, context, threads)


def choose(gguf: GGUFFile, wanted: str = "auto") -> Choice:
    """MLX where it can run the model, llama.cpp where it cannot or where an NVIDIA GPU and a CUDA build are present.

    Raises UnsupportedModel or BackendUnavailable when the wanted backend, or with ``auto`` every one, is out.
    """
    from edgeinfer.backends import llama_cpp

    if wanted not in NAMES:
        raise BadRequest(f"backend={wanted!r}: expected one of {', '.join(NAMES)}", "backend")
    if wanted == "llama.cpp":
        if not llama_cpp.installed():
            raise BackendUnavailable(f"llama.cpp is not installed; {_how()}", llama_cpp.INSTALL)
        return Choice("llama.cpp", "asked for")
    obstacle = unsupported(gguf)
    if wanted == "mlx":
        if obstacle:
            raise UnsupportedModel(f"{obstacle}; --backend llama.cpp may run it", gguf.path)
        return Choice("mlx", "asked for")
    if obstacle is None:
        obstacle = fit.obstacle(gguf)
    if not llama_cpp.installed():
        if obstacle is None:
            return Choice("mlx", _mlx_reason())
        raise BackendUnavailable(f"MLX cannot run {gguf.path.name}: {obstacle}; {_how()}", llama_cpp.INSTALL)
    if obstacle is not None:
        return Choice("llama.cpp", f"not MLX: {obstacle}")
    if llama_cpp.nvidia_present() and llama_cpp.gpu_offload():
        return Choice("llama.cpp", "an NVIDIA GPU and a CUDA build are present")
    return Choice("mlx", _mlx_reason())


def _how() -> str:
    from edgeinfer.backends import llama_cpp

    return f"install it with: {llama_cpp.INSTALL}"


def _mlx_reason() -> str:
    from edgeinfer.ops import device

    return f"MLX runs this architecture on {device()}"
