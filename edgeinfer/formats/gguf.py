"""GGUF files, mapped into memory: metadata, and the blocks of each tensor as they lie in the file.

A model split over several files (``NAME-00001-of-00005.gguf``) opens whole from any of them. Nothing is decoded here,
and numpy is first needed when blocks are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from edgeinfer.formats.cursor import MetadataValue
from edgeinfer.formats.header import TensorInfo
from edgeinfer.formats.shards import Shard, open_shards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GGUFFile", "MetadataValue", "TensorInfo", "open_gguf"]


def open_gguf(path: Path) -> GGUFFile:
    """Opens and checks a GGUF file, and with one shard of a model all of them.

    Raises ModelNotFound, CorruptFile (names the field or tensor and the byte) or UnsupportedModel.
    """
    return GGUFFile(open_shards(path))


class GGUFFile:
    """An open model: one file, or several shards with the metadata of the first."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        first = shards[0]
        self.path: Path = first.path
        self.version: int = first.header.version
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(first.header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {info.name: info for shard in shards for info in shard.header.tensors}
        )
        self.files: tuple[Path, ...] = tuple(shard.path for shard in shards)
        self.notes: tuple[str, ...] = tuple(
            f"{shard.path.name}: {shard.header.trailing} bytes behind the last tensor are ignored"
            for shard in shards
            if shard.header.trailing
        )
        self._offsets = first.header.offsets
        self._mapped = [shard.file for shard in shards]

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(info.shape) for info in self.tensors.values())

    def field_offset(self, key: str) -> int | None:
        """The byte of ``path`` at which the entry of a metadata key starts, where it has one."""
        return self._offsets[key]

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor. -> (rows, bytes per row) uint8, read-only, a view of the mapped file.

        Raises CorruptFile if the file was changed since it was opened.
        """
        import numpy as np

        info = self.tensors[name]
        file = self._mapped[info.shard]
        file.check_unchanged()
        flat = np.frombuffer(file.data, np.uint8, info.nbytes, info.offset)
        return flat.reshape(info.rows, info.row_bytes)

    def release(self, name: str) -> None:
        """Lets go of the memory that reading a tensor's blocks took; they can still be read, from the file again."""
        info = self.tensors[name]
        self._mapped[info.shard].release(info.offset, info.nbytes)

    def check_unchanged(self) -> None:
        """Raises CorruptFile if any of the files was changed since it was opened."""
        for file in self._mapped:
            file.check_unchanged()

    def close(self) -> None:
        """Blocks handed out stay valid. Twice is once."""
        for file in self._mapped:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
