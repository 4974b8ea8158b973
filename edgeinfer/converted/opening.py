"""Any model on disk, opened."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.converted.folder import is_folder_model
from edgeinfer.formats.gguf import GGUFFile, open_gguf


def open_model(path: Path) -> GGUFFile:
    """A GGUF file (with one shard all of them), or a folder of converted weights seen as one.

    Raises ModelNotFound, CorruptFile or UnsupportedModel.
    """
    if is_folder_model(path):
        from edgeinfer.converted.checkpoint import Checkpoint

        return Checkpoint(path)
    return open_gguf(path)
