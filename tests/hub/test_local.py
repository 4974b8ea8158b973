"""Models of other programs: found in the layouts those programs use, read in place, never written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeinfer.errors import ModelError, ModelNotFound
from edgeinfer.hub.local import at_path, cached, find_models, in_folder
from edgeinfer.hub.sources import find, local_models, resolve
from edgeinfer.settings import Settings
from tests.tiny import tiny_gguf

COMMIT = "a" * 40
OLDER = "0" * 40  # before COMMIT in order of name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def home(own_home: Path) -> Path:
    return own_home


def hugging_face(root: Path, repo: str, commit: str, files: dict[str, bytes], main: str = "") -> Path:
    """A repository in the layout of huggingface_hub's cache: blobs, and links to them by snapshot."""
    folder = root / f"models--{repo.replace('/', '--')}"
    for name, content in files.items():
        blob = folder / "blobs" / f"blob-{commit[:4]}-{name.replace('/', '-')}"
        link = folder / "snapshots" / commit / name
        for path in (blob.parent, link.parent, folder / "refs"):
            path.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(main or commit)
    return folder


def ollama(root: Path, place: str, content: bytes, digest: str = "c" * 64) -> Path:
    manifest = root / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'d' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(content)},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(content)
    return blob


def test_models_of_every_program_are_found_and_used_in_place(home: Path, settings: Settings, tiny: bytes) -> None:
    hugging_face(home / ".cache/huggingface/hub", "org/Tiny-GGUF", COMMIT, {"Tiny-Q8_0.gguf": tiny, "README.md": b""})
    blob = ollama(home / ".ollama/models", "registry.ollama.ai/library/tiny/1b", tiny)
    studio = home / ".lmstudio/models/publisher/repo/Studio-Q4_0.gguf"
    studio.parent.mkdir(parents=True)
    studio.write_bytes(tiny)
    before = sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*"))
    models = {model.name: model for model in local_models(settings)}
    assert {name: model.origin for name, model in models.items()} == {
        "Tiny-Q8_0": "hugging-face",
        "tiny:1b": "ollama",
        "Studio-Q4_0": "lm-studio",
    }
    assert models["Tiny-Q8_0"].source == "hf:org/Tiny-GGUF:Tiny-Q8_0.gguf"
    assert models["tiny:1b"].path == blob
    for name, model in models.items():
        assert resolve(name, settings) == model
        assert model.size == len(tiny)
        assert not model.managed
    assert sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*")) == before


def test_a_hub_source_that_is_cached_is_not_fetched(home: Path, settings: Settings, tiny: bytes) -> None:
    root = home / ".cache/huggingface/hub"
    hugging_face(root, "org/repo", OLDER, {"M-Q8_0.gguf": tiny + b"old"}, COMMIT)
    hugging_face(root, "org/repo", COMMIT, {"M-Q8_0.gguf": tiny, "M-Q4_0.gguf": tiny})
    model = find("hf:org/repo:Q8_0", settings)
    assert model is not None
    assert (model.origin, model.revision, model.size) == ("hugging-face", COMMIT, len(tiny))
    assert find("hf:org/repo", settings) is None  # which of the two is the hub's to say
    assert find("hf:org/repo:Q6_K", settings) is None
    older = cached("org/repo", "", OLDER, [root])
    assert older is not None
    assert older.size == len(tiny) + 3
    assert cached("org/repo", "Q8_0", "v9", [root]) is None


def test_one_file_in_two_snapshots_is_one_model(home: Path, tiny: bytes) -> None:
    root = home / "hub"
    folder = hugging_face(root, "org/repo", COMMIT, {"M-Q8_0.gguf": tiny})
    again = folder / "snapshots" / OLDER / "M-Q8_0.gguf"
    again.parent.mkdir()
    again.symlink_to(os.path.relpath((folder / "snapshots" / COMMIT / "M-Q8_0.gguf").resolve(), again.parent))
    assert len(find_models({"hugging-face": [root, root]})) == 1


def test_equal_names_are_told_apart(tmp_path: Path, tiny: bytes) -> None:
    for publisher in ("one", "two"):
        path = tmp_path / "studio" / publisher / f"{publisher}-repo" / "M-Q4_0.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(tiny)
    hugging_face(tmp_path / "hub", "org/repo", COMMIT, {"m-q4_0.gguf": tiny})
    models = find_models({"lm-studio": [tmp_path / "studio"], "hugging-face": [tmp_path / "hub"]})
    assert [model.name for model in models] == ["one-repo/M-Q4_0", "two-repo/M-Q4_0", "org/repo/m-q4_0"]


OLLAMA_NAMES = {
    "registry.ollama.ai/library/llama3.2/1b": "llama3.2:1b",
    "registry.ollama.ai/someone/model/latest": "someone/model:latest",
    "hf.co/org/repo-GGUF/Q4_K_M": "hf.co/org/repo-GGUF:Q4_K_M",
}


@pytest.mark.parametrize(("place", "name"), OLLAMA_NAMES.items(), ids=OLLAMA_NAMES)
def test_ollama_names_are_those_that_ollama_takes(tmp_path: Path, tiny: bytes, place: str, name: str) -> None:
    ollama(tmp_path, place, tiny)
    assert [model.name for model in find_models({"ollama": [tmp_path]})] == [name]


@pytest.mark.parametrize(
    "manifest",
    [
        *(b"", b"{", b"[]", b"null", b"\xff", b'{"layers": 3}', b'{"layers": [3]}', b'{"layers": [{}]}'),
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 7}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
    ],
)
def test_a_manifest_that_is_none_is_passed_over(tmp_path: Path, tiny: bytes, manifest: bytes) -> None:
    ollama(tmp_path, "registry.ollama.ai/library/good/1b", tiny)
    (tmp_path / "manifests/registry.ollama.ai/library/good/bad").write_bytes(manifest)
    assert [model.name for model in find_models({"ollama": [tmp_path]})] == ["good:1b"]


def test_links_that_dangle_and_folders_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "models--org--repo/snapshots/x").mkdir(parents=True)
    (tmp_path / "models--org--repo/snapshots/x/m.gguf").symlink_to("nowhere")
    gone = tmp_path / "gone"
    assert find_models({"hugging-face": [tmp_path, gone], "lm-studio": [gone], "ollama": [gone]}) == []


def test_a_path_is_a_file_a_shard_or_a_folder_with_one_model(tmp_path: Path, settings: Settings, tiny: bytes) -> None:
    single = tmp_path / "single"
    single.mkdir()
    (single / "M.Q4_K_M.gguf").write_bytes(tiny)
    (single / "mmproj-M-F16.gguf").write_bytes(tiny)
    for path in (single, single / "M.Q4_K_M.gguf"):
        model = resolve(str(path), settings)
        assert (model.path, model.name, model.quant) == (single / "M.Q4_K_M.gguf", "M.Q4_K_M", "Q4_K_M")
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    shards = tuple(sharded / f"S-{number:05}-of-00003.gguf" for number in (1, 2, 3))
    for shard in shards:
        shard.write_bytes(tiny)
    for path in (sharded, *shards):
        assert at_path(path).files == shards
    shards[1].unlink()
    with pytest.raises(ModelError, match="lacks 1 of its shards"):
        at_path(shards[0])


def test_a_path_that_is_no_model(tmp_path: Path, settings: Settings, tiny: bytes) -> None:
    with pytest.raises(ModelError, match="holds no GGUF file"):
        at_path(tmp_path)
    for name in ("one.gguf", "two.gguf"):
        (tmp_path / name).write_bytes(tiny)
    with pytest.raises(ModelError, match=r"holds 2 models; name one: one\.gguf, two\.gguf"):
        at_path(tmp_path)
    with pytest.raises(ModelNotFound, match=r"did you mean one\.gguf"):
        resolve(str(tmp_path / "onee.gguf"), settings)
    with pytest.raises(ModelNotFound, match="no such file"):
        resolve(str(tmp_path / "no/such/dir.gguf"), settings)
    (tmp_path / "weights.bin").write_bytes(tiny)
    assert at_path(tmp_path / "weights.bin").name == "weights.bin"


def test_what_is_at_a_path_but_no_file_is_said(tmp_path: Path, settings: Settings) -> None:
    pipe, loop = tmp_path / "pipe.gguf", tmp_path / "loop.gguf"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path, words in ((pipe, "a device or a pipe"), (loop, "leads nowhere"), (tmp_path / (300 * "x"), "too long")):
        with pytest.raises(ModelError, match=words):
            find(str(path), settings)


def test_a_plain_folder_is_listed_with_what_lies_in_it(tmp_path: Path, tiny: bytes) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/M-Q8_0.gguf").write_bytes(tiny)
    (tmp_path / "S-00001-of-00002.gguf").write_bytes(tiny)
    assert [(model.name, model.origin) for model in in_folder(tmp_path)] == [("M-Q8_0", "file")]
    with pytest.raises(ModelNotFound, match="no such folder"):
        in_folder(tmp_path / "none")
