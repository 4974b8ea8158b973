"""Any model that opens here, written as a GGUF file."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.conversion.codes import to_gguf
from edgeinfer.errors import BackendUnavailable, BadRequest, DiskLimit
from edgeinfer.formats.gguf import GGUFFile, TensorInfo
from edgeinfer.quant.codec import BY_GGML_ID, CODECS, Codec, decode
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from gguf import GGUFWriter

FLOATS = {"F32": 0, "F16": 1, "BF16": 32}
"""What ``write_gguf`` writes matrices as, in the numbers of llama.cpp's file types."""
INSTALL = "pip install 'edgeinfer[convert]'"
_ROWS = 1 << 24
"""Weights that are decoded at once."""
_OWN = ("general.architecture", "general.file_type", "general.alignment", "general.quantization_version")
_SPLIT = "split."


@dataclass(slots=True)
class Outcome:
    """How many matrices kept their codes, kept them with scales that were rounded, or were decoded to floats."""

    kept: int = 0
    rounded: int = 0
    decoded: int = 0

    def count(self, kept: bool, exact: bool = True) -> None:
        if not kept:
            self.decoded += 1
        elif exact:
            self.kept += 1
        else:
            self.rounded += 1

    def __str__(self) -> str:
        parts = (
            f"{self.kept} matrices as they are",
            f"{self.rounded} with scales rounded to float16" if self.rounded else "",
            f"{self.decoded} decoded to floats" if self.decoded else "",
        )
        return ", ".join(filter(None, parts))


def check_installed() -> None:
    """Raises BackendUnavailable without the ``gguf`` package."""
    if importlib.util.find_spec("gguf") is None:
        raise BackendUnavailable(f"writing GGUF files needs the gguf package; install it with: {INSTALL}", INSTALL)


def write_gguf(
    file: GGUFFile, path: Path, form: str, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Outcome:
    """Writes ``path``: matrices as ``form`` (of FLOATS), vectors as float32, metadata as it is.

    ``keep`` as form leaves codes that GGUF has as they are, bit for bit, and writes other matrices as F16. The file
    takes its name only when it is whole. Raises BackendUnavailable, BadRequest, DiskLimit, CorruptFile.
    """
    check_installed()
    if form != "keep" and form not in FLOATS:
        raise BadRequest(f"{form!r:.20}: expected one of {', '.join(FLOATS)}, keep", "to")
    codecs = {name: _target(file, info, form) for name, info in file.tensors.items()}
    outcome = Outcome()
    for name, codec in codecs.items():
        if len(file.tensors[name].shape) > 1:
            outcome.count(codec.family != "plain" or file.tensors[name].codec.family == "plain")
    sizes = {name: _bytes(file.tensors[name], codec) for name, codec in codecs.items()}
    check_room(path.parent, sum(sizes.values()))
    from gguf import GGMLQuantizationType, GGUFWriter

    unfinished = path.with_name(f"{path.name}.part")
    writer = GGUFWriter(unfinished, str(file.metadata["general.architecture"]))
    with ExitStack() as closing:
        closing.callback(unfinished.unlink, missing_ok=True)
        closing.callback(writer.close)
        _write_metadata(writer, file, FLOATS.get(form))
        for name, info in file.tensors.items():
            kind = GGMLQuantizationType(codecs[name].ggml_id)
            writer.add_tensor_info(name, info.shape, np.dtype(np.float32), sizes[name], raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done, total = 0, sum(sizes.values())
        for name, codec in codecs.items():
            writer.write_tensor_data(_encoded(file, name, codec))
            file.release(name)
            done += sizes[name]
            on_progress(done, total)
        writer.close()
        unfinished.replace(path)
    return outcome


def _target(file: GGUFFile, info: TensorInfo, form: str) -> Codec:
    if len(info.shape) == 1 or min(info.shape) == 1:
        return CODECS["f32"]
    if form == "keep":
        if info.codec.ggml_id in BY_GGML_ID:
            return info.codec
        mapped = to_gguf(info.codec, file.blocks(info.name))
        return CODECS["f16"] if mapped is None else mapped[0]
    return CODECS[form.lower()]


def _bytes(info: TensorInfo, codec: Codec) -> int:
    return info.rows * info.shape[-1] // codec.weights * codec.bytes


def check_room(folder: Path, needed: int) -> None:
    available = shutil.disk_usage(folder).free
    if needed > available:
        have, wants = human_bytes(available), human_bytes(needed)
        raise DiskLimit(f"{folder} has room for {have}, the file takes {wants}", needed, available)


def _encoded(file: GGUFFile, name: str, codec: Codec) -> NDArray[Any]:
    """The tensor as the writer takes it, some rows at a time so that no more than the result is in memory."""
    info = file.tensors[name]
    blocks = file.blocks(name)
    if info.codec == codec:
        return np.ascontiguousarray(blocks)
    if codec.family != "plain":
        mapped = to_gguf(info.codec, blocks)
        assert mapped is not None
        return mapped[1]
    made = np.empty((info.rows, info.shape[-1] // codec.weights * codec.bytes), np.uint8)
    step = max(1, _ROWS // info.shape[-1])
    for start in range(0, info.rows, step):
        weights = decode(info.codec, blocks[start : start + step])
        made[start : start + step] = _floats(weights, codec).view(np.uint8).reshape(len(weights), -1)
    return made


def _floats(weights: NDArray[np.float32], codec: Codec) -> NDArray[Any]:
    if codec.name == "f32":
        return weights
    if codec.name == "f16":
        with np.errstate(over="ignore"):
            return weights.astype("<f2")
    bits = weights.view(np.uint32)
    return np.where(np.isnan(weights), np.uint32(0x7FC0), bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")


def _write_metadata(writer: GGUFWriter, file: GGUFFile, file_type: int | None) -> None:
    if file_type is not None:
        writer.add_file_type(file_type)
    elif isinstance(kept := file.metadata.get("general.file_type"), int):
        writer.add_file_type(kept)
    writer.add_quantization_version(2)
    for key, value in file.metadata.items():
        if key in _OWN or key.startswith(_SPLIT) or value == []:
            continue
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                (writer.add_uint32 if 0 <= value < 2**32 else writer.add_int64)(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
