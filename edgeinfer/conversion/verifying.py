"""Whether a model is whole: its bytes, its numbers, and the tensors that its architecture needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeinfer.errors import ModelError, WrongTensors
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline
from edgeinfer.quant.codec import decode

OnProgress = Callable[[int, int], None]
"""Is given bytes done, and of how many."""
_PIECE = 16 << 20  # bytes read at once
_WEIGHTS = 1 << 22  # decoded at once


@dataclass(frozen=True, slots=True)
class Hashed:
    path: Path
    sha256: str
    expected: str  # empty: unknown

    @property
    def wrong(self) -> bool:
        return bool(self.expected) and self.sha256 != self.expected


@dataclass(frozen=True, slots=True)
class BadTensor:
    """A tensor with blocks that decode to infinities or to no number."""

    name: str
    codec: str
    blocks: int  # that are bad
    first: int  # of them, counted from the tensor's start
    of: int


@dataclass(frozen=True, slots=True)
class Report:
    files: Sequence[Hashed]
    tensors: int
    blocks: int
    bad: Sequence[BadTensor]
    undecodable: Sequence[str]
    obstacle: str  # why MLX does not run it; empty if it does
    misfit: bool  # that is because of tensors that its own architecture needs

    @property
    def whole(self) -> bool:
        return not self.bad and not self.misfit and not any(file.wrong for file in self.files)


def verify(file: GGUFFile, expected: Sequence[str] = (), on_progress: OnProgress = lambda done, total: None) -> Report:
    """Reads every byte. ``expected`` are the hashes of the files, where they are known. Raises CorruptFile."""
    stored = sum(info.nbytes for info in file.tensors.values())
    total = stored + sum(path.stat().st_size for path in file.files)
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_progress(min(done, total), total)

    known = expected if len(expected) == len(file.files) else [""] * len(file.files)
    hashes = [Hashed(path, _sha256(path, advance), wanted) for path, wanted in zip(file.files, known, strict=True)]
    bad, undecodable = [], []
    for name, info in file.tensors.items():
        if not info.codec.decodable:
            undecodable.append(name)
        elif found := _bad_blocks(file, name):
            bad.append(found)
        file.release(name)
        advance(info.nbytes)
    blocks = sum(info.nbytes // info.codec.bytes for info in file.tensors.values())
    return Report(hashes, len(file.tensors), blocks, bad, undecodable, *_obstacle(file))


def _obstacle(file: GGUFFile) -> tuple[str, bool]:
    """Why MLX cannot run the file, and whether its tensors are to blame."""
    try:
        build(file, Outline)
    except ModelError as error:
        return str(error), isinstance(error, WrongTensors)
    return "", False


def _sha256(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()


def _bad_blocks(file: GGUFFile, name: str) -> BadTensor | None:
    info = file.tensors[name]
    codec = info.codec
    blocks = file.blocks(name).reshape(-1, codec.bytes)
    step = max(1, _WEIGHTS // codec.weights)
    bad, first = 0, -1
    for start in range(0, len(blocks), step):
        finite = np.isfinite(decode(codec, blocks[start : start + step])).reshape(-1, codec.weights).all(axis=1)
        if not finite.all():
            first = start + int(np.argmin(finite)) if first < 0 else first
            bad += int(np.count_nonzero(~finite))
    return BadTensor(name, codec.name, bad, first, len(blocks)) if bad else None
