"""A GGUF file's weights as a Hugging Face checkpoint in float32, for engines that read no GGUF."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.converted.publishing import PublishedTensor, published_settings, published_tensors
from edgeinfer.errors import DiskLimit
from edgeinfer.formats.gguf import GGUFFile, open_gguf


def checkpoint_bytes(path: Path) -> int:
    """The size of what ``write_checkpoint`` would write."""
    with open_gguf(path) as file:
        return sum(4 * math.prod(info.shape) for info in file.tensors.values())


def write_checkpoint(path: Path, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` (float32) for a GGUF file into ``folder``.

    Raises UnsupportedModel for a model that has no such form here, DiskLimit, and what opening the file raises.
    """
    with open_gguf(path) as file:
        settings = published_settings(file) | {"torch_dtype": "float32"}
        tensors = published_tensors(file)
        needed = sum(map(_nbytes, tensors))
        available = shutil.disk_usage(folder).free
        if needed > available:
            raise DiskLimit(
                f"{folder} has room for {available >> 20} MiB, the float32 weights take {needed >> 20} MiB; "
                "set TMPDIR to a folder with more room",
                needed,
                available,
            )
        _write_safetensors(file, tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings, indent=1))


def _write_safetensors(file: GGUFFile, tensors: Sequence[PublishedTensor], path: Path) -> None:
    """One tensor at a time, so that no more than one is in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + _nbytes(tensor)
        header[tensor.name] = {"dtype": "F32", "shape": list(tensor.info.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            out.write(np.ascontiguousarray(tensor.weights(file), "<f4").data)


def _nbytes(tensor: PublishedTensor) -> int:
    return 4 * math.prod(tensor.info.shape)
