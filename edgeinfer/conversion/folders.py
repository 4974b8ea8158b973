"""A GGUF file as an MLX folder: codes that both have stay as they are, other matrices become float16."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.conversion.codes import Mode, Packed, mode_of, to_mlx
from edgeinfer.conversion.tokenizing import end_tokens, tokenizer_files
from edgeinfer.conversion.writing import Outcome, check_room
from edgeinfer.converted.folder import CONFIG, SINGLE
from edgeinfer.converted.matrices import as_bf16
from edgeinfer.converted.publishing import PublishedTensor, published_settings, published_tensors
from edgeinfer.errors import BadRequest
from edgeinfer.formats.gguf import GGUFFile

Stored: TypeAlias = tuple[str, str, tuple[int, ...], NDArray[Any]]
"""Name, dtype of safetensors, shape, numbers."""
_MARGIN = 1 << 20  # bytes for the header and the JSON files


@dataclass(slots=True)
class _Written:
    """Rows of the header, and what became of the matrices."""

    rows: dict[str, Any]
    modes: dict[str, Mode]
    outcome: Outcome
    end: int = 0


def write_mlx(
    file: GGUFFile, folder: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Outcome:
    """Writes ``folder``, which must not exist or be empty and takes its name only when it is whole.

    Raises BadRequest, DiskLimit, and UnsupportedModel for a family or a vocabulary that has no such form here.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequest(f"{folder} exists and is not empty; give another name: folders are not replaced", "target")
    settings = published_settings(file)
    tokenizer = tokenizer_files(file.metadata)
    tensors = published_tensors(file)
    check_room(folder.parent, sum(_most_bytes(tensor) for tensor in tensors) + _MARGIN)
    with TemporaryDirectory(prefix=".edgeinfer-", dir=folder.parent) as place:
        made = Path(place) / folder.name
        made.mkdir()
        written = _write_tensors(file, tensors, made, on_progress)
        quantization = _quantization(written.modes)
        ends = end_tokens(file.metadata)
        settings |= {"torch_dtype": "float16", **({"eos_token_id": ends} if ends else {})}
        if quantization:
            settings |= {"quantization": quantization, "quantization_config": quantization}
        documents = {
            CONFIG: settings,
            **tokenizer,
            **({"generation_config.json": {"eos_token_id": ends}} if ends else {}),
        }
        for name, document in documents.items():
            (made / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        made.rename(folder)
    return written.outcome


def _most_bytes(tensor: PublishedTensor) -> int:
    mode = mode_of(tensor.info.codec)
    return int(math.prod(tensor.info.shape) * (4 if mode is None else mode.bits / 8 + 4 / mode.group))


def _write_tensors(
    file: GGUFFile, tensors: list[PublishedTensor], folder: Path, on_progress: Callable[[int, int], None]
) -> _Written:
    """Numbers go to a file of their own first, since the header in front of them says which there are."""
    written, data = _Written({"__metadata__": {"format": "mlx"}}, {}, Outcome()), folder / "data.part"
    total = sum(tensor.info.nbytes for tensor in tensors)
    with data.open("wb") as out:
        done = 0
        for tensor in tensors:
            for name, dtype, shape, numbers in _stored(file, tensor, written):
                raw = np.ascontiguousarray(numbers).tobytes()
                start, written.end = written.end, written.end + len(raw)
                written.rows[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, written.end]}
                out.write(raw)
            file.release(tensor.info.name)
            done += tensor.info.nbytes
            on_progress(done, total)
    text = json.dumps(written.rows).encode()
    text += b" " * (-len(text) % 8)
    with (folder / SINGLE).open("wb") as out, data.open("rb") as numbers_file:
        out.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(numbers_file, out, 16 << 20)
    data.unlink()
    return written


def _stored(file: GGUFFile, tensor: PublishedTensor, written: _Written) -> Iterator[Stored]:
    info = tensor.info
    packed: Packed | None = None
    if len(info.shape) > 1:
        packed = to_mlx(info.codec, tensor.turned(file.blocks(info.name)))
        written.outcome.count(packed is not None or info.codec.family == "plain", packed is None or packed.exact)
    if packed is None:
        dtype, numbers = _narrowest(tensor.weights(file), vector=len(info.shape) == 1)
        yield tensor.name, dtype, info.shape, numbers
        return
    module = tensor.name.removesuffix(".weight")
    written.modes[module] = packed.mode
    lead = info.shape[:-1]
    yield tensor.name, "U32", (*lead, packed.words.shape[1]), packed.words
    kind = "U8" if packed.biases is None else "F16"
    yield f"{module}.scales", kind, (*lead, packed.scales.shape[1]), packed.scales
    if packed.biases is not None:
        yield f"{module}.biases", kind, (*lead, packed.biases.shape[1]), packed.biases


def _narrowest(weights: NDArray[np.float32], vector: bool) -> tuple[str, NDArray[Any]]:
    """Float16 or bfloat16 where one holds all; else vectors stay, and matrices are rounded to one."""
    with np.errstate(over="ignore"):
        half = weights.astype("<f2")
    brain = as_bf16(weights).view("<u2").reshape(weights.shape)
    if np.array_equal(half, weights):
        return "F16", half
    if np.array_equal((brain.astype(np.uint32) << 16).view(np.float32), weights):
        return "BF16", brain
    if vector:
        return "F32", weights
    return ("F16", half) if np.isfinite(half).all() else ("BF16", brain)


def _quantization(modes: Mapping[str, Mode]) -> dict[str, Any]:
    """What most matrices are; the others by name. Those that are not packed have no scales, which says so."""
    if not modes:
        return {}
    usual = Counter(modes.values()).most_common(1)[0][0]
    return usual.settings() | {module: mode.settings() for module, mode in modes.items() if mode != usual}
