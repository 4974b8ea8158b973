"""Names from strangers, made safe for a file system, and what a GGUF file's name says by custom."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from edgeinfer.errors import ModelError
from edgeinfer.units import human_bytes

MAX_NAME = 100
_RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)")  # device names on Windows
_SHARD = re.compile(r"(?i)^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_QUANT = re.compile(
    r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]{1,3})*|TQ\d_\d|B?F16|F32|FP16|FP32|MXFP4(?:_MOE)?|NVFP4))(?=$|[-./])"
)
_COMPANION = re.compile(r"(?i)(^|[-._/])(mmproj|imatrix)([-._/]|$)")

_OTHER_WEIGHTS = ("consolidated", "adapter")
_FOLDER_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.json", "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip
DEFAULT_QUANTS = (
    *("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0"),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "F16", "BF16", "F32"),
)
"""Which quantization is taken when none is asked for: Q4_K_M, else the nearest above, else the nearest below."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One model among the files of a repository or folder: a GGUF file, or its shards in order."""

    stem: str  # the file's path without shard number and suffix
    files: tuple[str, ...]
    size: int
    missing: int = 0  # shards that are not there

    @property
    def name(self) -> str:
        return PurePosixPath(self.stem).name

    @property
    def quant(self) -> str:
        return quant_of(self.stem)

    def __str__(self) -> str:
        return f"{self.quant or self.name} ({human_bytes(self.size)})"


def quant_of(stem: str) -> str:
    """The quantization that a file's name ends in, in capitals; empty where it names none."""
    found = _QUANT.findall(stem)
    return str(found[-1]).upper() if found else ""


def safe_name(text: str) -> str:
    """A folder or file name for text: letters, digits, ``.``, ``_`` and ``-``, no longer than MAX_NAME."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-. ") or "model"
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"_{name}" if _RESERVED.match(name) else name


def plain_file(text: str, suffix: str = ".gguf") -> str:
    """The last part of a path or URL as a safe file name that ends in suffix."""
    last = unquote(urlsplit(text).path).replace("\\", "/").rpartition("/")[2]
    stem = last[: -len(suffix)] if last.lower().endswith(suffix) else last
    shard = _SHARD.match(stem)
    if shard is None:
        return safe_name(stem) + suffix
    return f"{safe_name(shard['stem'])}-{shard['number']}-of-{shard['count']}{suffix}"


def check_inside(path: str) -> None:
    """Refuses a repository's file path that would leave its folder, or that a terminal or disk may choke on."""
    parts = path.split("/")
    if not path or "\\" in path or not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ModelError(f"file name {path!r} is not a plain path inside its repository; refused")


def check_plain(path: str) -> None:
    """Refuses a file whose name would not be the same on every disk: others name it, so that it cannot be changed."""
    if safe_name(path) != path:
        raise ModelError(f"file name {path!r} holds more than letters, digits, '.', '_' and '-'; refused")


def folder_files(sizes: Mapping[str, int]) -> list[str]:
    """The files of a repository of converted weights, as ``config.json`` and safetensors; empty where it is none.

    Mistral's own form of the same weights and adapters are left out, and so is all that lies in folders.
    """
    here = [path for path in sorted(sizes) if "/" not in path]
    weights = [path for path in here if path.endswith(".safetensors") and not path.startswith(_OTHER_WEIGHTS)]
    usual = [path for path in weights if path.startswith("model")]
    if "config.json" not in here or not weights:
        return []
    return [*(path for path in here if path in _FOLDER_FILES), *(usual or weights)]


def variants(sizes: Mapping[str, int]) -> list[Variant]:
    """The models among files (path: bytes), in order of name; vision projectors and the like are left out."""
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for path in sorted(sizes):
        if not path.lower().endswith(".gguf") or _COMPANION.search(path):
            continue
        stem = path[: -len(".gguf")]
        shard = _SHARD.match(stem)
        key, number = ((shard["stem"], int(shard["count"])), int(shard["number"])) if shard else ((stem, 1), 1)
        groups.setdefault(key, {})[number] = path
    found = []
    for (stem, count), shards in groups.items():
        files = tuple(path for _, path in sorted(shards.items()))
        found.append(Variant(stem, files, sum(sizes[file] for file in files), count - len(files)))
    return found


def choose(found: list[Variant], selector: str, where: str) -> Variant:
    """The variant that selector (a quantization, a file, part of a name, or nothing) means. Raises ModelError."""
    if not found:
        raise ModelError(f"{where} holds no GGUF file, and no config.json with safetensors")
    matches = _selected(found, selector) if selector else _default(found)
    if len(matches) == 1:
        if matches[0].missing:
            raise ModelError(f"{where}: {matches[0].name} lacks {matches[0].missing} of its shards")
        return matches[0]
    if not matches:
        raise ModelError(f"{where} has no {selector!r}; it has {_listed(found)}")
    label = repr(selector) if selector else "a quantization"
    raise ModelError(f"{where} has {len(matches)} models that match {label}: {_files(matches)}; name the file")


def _selected(found: list[Variant], selector: str) -> list[Variant]:
    wanted = selector.lower()
    tests = (
        lambda one: wanted in (file.lower() for file in one.files),
        lambda one: wanted in (PurePosixPath(file).name.lower() for file in one.files),
        lambda one: wanted == one.quant.lower(),
        lambda one: one.name.lower().endswith(wanted),
        lambda one: wanted in one.name.lower(),
    )
    return next((hits for test in tests if (hits := [one for one in found if test(one)])), [])


def _default(found: list[Variant]) -> list[Variant]:
    if len(found) == 1:
        return found
    by_rank = ([one for one in found if one.quant == quant] for quant in DEFAULT_QUANTS)
    return next((hits for hits in by_rank if hits), found)


def _listed(found: Iterable[Variant]) -> str:
    return ", ".join(str(one) for one in sorted(found, key=lambda one: one.size))


def _files(found: Iterable[Variant]) -> str:
    return ", ".join(f"{one.files[0]} ({human_bytes(one.size)})" for one in found)
