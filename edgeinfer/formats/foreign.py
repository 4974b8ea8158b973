"""What a file is when it is not GGUF, so that the error can say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import CorruptFile, ModelError, UnsupportedModel

HEAD = 512  # bytes that are looked at


@dataclass(frozen=True, slots=True)
class Signature:
    """Bytes that give a format away. ``model`` tells another model format from something that is no model at all."""

    magic: bytes  # compared in lower case
    what: str
    advice: str
    at: int = 0
    model: bool = False


_DOWNLOAD = "download the .gguf file itself"
_CONVERT = "convert it to GGUF with llama.cpp's convert_hf_to_gguf.py"
_OLD = "convert the original model to GGUF again; this format was dropped in 2023"
_SIGNATURES = (
    Signature(b"version https://git-lfs", "a Git LFS pointer, not the model", "run 'git lfs pull' beside it"),
    Signature(b"<!doctype html", "an HTML page, not the model", _DOWNLOAD),
    Signature(b"<html", "an HTML page, not the model", _DOWNLOAD),
    Signature(b"<?xml", "an XML page, not the model", _DOWNLOAD),
    Signature(b"{", "JSON text, not the model", _DOWNLOAD),
    Signature(b'{"', "a safetensors file, not GGUF", "give the folder that it lies in", at=8, model=True),
    Signature(b"pk\3\4", "a zip archive (perhaps a PyTorch checkpoint), not GGUF", "unpack or convert it", model=True),
    Signature(b"\x80\2", "a Python pickle, which is never opened: it can run code", _CONVERT, model=True),
    Signature(b"\x1f\x8b", "a gzip archive, not GGUF", "unpack it first"),
    Signature(b"\x28\xb5\x2f\xfd", "a zstd archive, not GGUF", "unpack it first"),
    Signature(b"ustar", "a tar archive, not GGUF", "unpack it first", at=257),
    Signature(b"%pdf", "a PDF, not the model", _DOWNLOAD),
    Signature(b"lmgg", "an old GGML file", _OLD, model=True),
    Signature(b"fmgg", "an old GGMF file", _OLD, model=True),
    Signature(b"tjgg", "an old GGJT file", _OLD, model=True),
    Signature(b"algg", "an old GGLA adapter", _OLD, model=True),
    Signature(b"ggml", "an old GGML file", _OLD, model=True),
    Signature(b"ggmf", "an old GGMF file", _OLD, model=True),
    Signature(b"ggjt", "an old GGJT file", _OLD, model=True),
    Signature(b"fugg", "a GGUF file with its bytes swapped (big-endian)", "convert it to little-endian", model=True),
    Signature(b"gguf", "the GGUF magic in the wrong case; the file was altered", "download it again"),
    Signature(bytes(4), "zeros: a download that never finished", "download it again"),
)


def not_gguf(path: Path, head: bytes, wanted: str = "GGUF") -> ModelError:
    """The error for a file that starts with ``head`` instead of as files of the format ``wanted`` do."""
    lowered = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for row in _SIGNATURES:
        if lowered.startswith(row.magic) if row.at == 0 else head[row.at :].startswith(row.magic):
            problem = f"{row.what}; {row.advice}"
            if row.model:
                return unsupported(path, "magic", 0, problem, head[:4])
            return CorruptFile(path, "magic", 0, problem)
    expected = ", expected b'GGUF'" if wanted == "GGUF" else ""
    return CorruptFile(path, "magic", 0, f"not a {wanted} file: it starts with {head[:4]!r}{expected}")


def unsupported(path: Path, field: str, offset: int, problem: str, value: object) -> UnsupportedModel:
    """An UnsupportedModel that reads like a CorruptFile."""
    return UnsupportedModel(f"{path.name}: {field} at byte {offset}: {problem}", path, field, value)
