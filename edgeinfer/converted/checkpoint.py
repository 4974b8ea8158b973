"""A folder of converted weights, opened as the GGUF file that it would become."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.converted.adapter import draft_adapter
from edgeinfer.converted.collecting import Collector
from edgeinfer.converted.folder import Folder
from edgeinfer.converted.matrices import Matrix
from edgeinfer.converted.settings import Settings
from edgeinfer.converted.vocabulary import vocabulary
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import shown
from edgeinfer.formats.gguf import GGUFFile, TensorInfo
from edgeinfer.quant.codec import decode


class Checkpoint(GGUFFile):
    """Metadata under GGUF's keys, tensors under its names; ``blocks`` rearranges a tensor when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFound, CorruptFile or UnsupportedModel: an adapter, an unknown family or quantization."""
        with ExitStack() as opened:
            self._folder = Folder(path)
            opened.callback(self._folder.close)
            self.path, self.version, self.notes = path, 0, ()
            self.files = tuple(file.path for file in self._folder.files)
            settings = Settings(self._folder.config, path)
            self._matrices = Collector(self._folder, settings).matrices()
            adapter, scale = draft_adapter(self._folder)
            self._matrices |= adapter
            self.tensors = MappingProxyType({name: _info(name, each) for name, each in self._matrices.items()})
            metadata = self._settings_of(settings) | vocabulary(path, settings.family.architecture, self._rows())
            if scale is not None:
                metadata[f"{settings.family.architecture}.diffusion.adapter_scale"] = scale
            self.metadata = MappingProxyType({"general.name": path.resolve().name, **metadata})
            opened.pop_all()

    def field_offset(self, key: str) -> int | None:
        """None: keys are made, they stand nowhere."""

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """(rows, bytes per row) uint8, made anew each time. Raises CorruptFile if a file was changed."""
        info = self.tensors[name]
        made = self._matrices[name].make()
        if made.shape != (info.rows, info.row_bytes):
            raise UnsupportedModel(
                f"{self.path.name}: {shown(name)}: {made.shape} bytes; expected {(info.rows, info.row_bytes)}",
                self.path,
                name,
            )
        return made

    def release(self, name: str) -> None:
        """Nothing is held."""

    def check_unchanged(self) -> None:
        for file in self._folder.files:
            file.mapped.check_unchanged()

    def close(self) -> None:
        self._folder.close()

    def _settings_of(self, settings: Settings) -> dict[str, Any]:
        """With the layer past the last one that predicts a further token, where there is one."""
        found, prefix = settings.metadata(), settings.family.architecture
        if f"blk.{settings.layers}.nextn.eh_proj.weight" in self.tensors:
            found |= {f"{prefix}.block_count": settings.layers + 1, f"{prefix}.nextn_predict_layers": 1}
        return found

    def _rows(self) -> int:
        if "token_embd.weight" not in self.tensors:
            raise UnsupportedModel(f"{self.path.name}: the tensor of the tokens' embeddings is missing", self.path)
        return self.tensors["token_embd.weight"].shape[0]


def _info(name: str, matrix: Matrix) -> TensorInfo:
    codec, shape = matrix.codec, matrix.shape
    if not shape or shape[-1] % codec.weights or min(shape) < 1:
        raise UnsupportedModel(f"{name}: shape {list(shape)}, which {codec.name} does not hold whole")
    return TensorInfo(name, shape, codec, 0, math.prod(shape) // codec.weights * codec.bytes)


def weights_of(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """A tensor's numbers, in its own shape."""
    info = file.tensors[name]
    return decode(info.codec, file.blocks(name)).reshape(info.shape)
