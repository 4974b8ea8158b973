"""Repositories of safetensors: every file of the model, resumed and checked, into a folder that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.errors import CorruptFile, ModelError, NetworkFailed
from edgeinfer.hub.sources import fetch, find, plan, resolve
from edgeinfer.hub.store import Store
from edgeinfer.hub.transport import Patience
from edgeinfer.settings import Settings
from tests.converted.test_folders import sharded
from tests.hub.server import COMMIT, Fault, Hub, sha256

SOURCE = "hf:org/Tiny-4bit"


@pytest.fixture
def repository(hub: Hub, tmp_path: Path) -> dict[str, bytes]:
    """A model in two shards, and files that are none of our business."""
    folder = sharded(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"README.md": b"# Tiny", "consolidated.safetensors": b"the same again", "original/model.safetensors": b"x",
              "pytorch_model.bin": b"a pickle", "vocab.json": b"{}"}  # fmt: skip
    hub.repositories["org/Tiny-4bit"] = files | others
    return files


def test_a_folder_is_pulled_whole_and_runs(repository: dict[str, bytes], hub: Hub, settings: Settings) -> None:
    planned = plan(SOURCE, settings)
    assert {remote.file for remote in planned.downloads} == repository.keys()
    assert planned.weight_bytes == sum(len(data) for name, data in repository.items() if name.endswith(".safetensors"))
    model = resolve(SOURCE, settings)
    assert model.path == settings.models_folder / "Tiny-4bit"
    assert (model.name, model.architecture, model.revision, model.license) == ("Tiny-4bit", "llama", COMMIT, "mit")
    assert {path.name: path.read_bytes() for path in model.files} == repository
    assert set(model.sha256) == {sha256(data) for data in repository.values()}
    with edgeinfer.load(model.path) as llm:
        assert llm.chat([{"role": "user", "content": "Hi"}], max_tokens=2, temperature=0).usage.completion <= 2
    asked = len(hub.log)
    for name in (SOURCE, "tiny-4bit", model.source, str(model.path)):
        found = find(name, settings)
        assert found is not None
        assert found.path == model.path
    assert len(hub.log) == asked


def test_a_shard_that_broke_off_is_resumed(
    repository: dict[str, bytes], hub: Hub, settings: Settings, patience: Patience
) -> None:
    planned = plan(SOURCE, settings)
    shards = [place for place, remote in enumerate(planned.downloads) if remote.file.endswith(".safetensors")]
    hub.piece = 1 << 10
    hub.faults = [Fault() for _ in range(shards[0])] + [Fault(drop_after=5000)]
    model = fetch(planned, settings, patience=patience)
    assert {path.name: path.read_bytes() for path in model.files} == repository
    assert [ask.start for ask in hub.downloads() if ask.start] == [5000]


def test_what_a_pull_left_is_taken_up_by_the_next(repository: dict[str, bytes], hub: Hub, settings: Settings) -> None:
    planned = plan(SOURCE, settings)
    hub.piece = 1 << 10
    hub.faults = [Fault() for _ in range(len(planned.downloads) - 1)] + [Fault(drop_after=5000)]
    with pytest.raises(NetworkFailed):
        fetch(planned, settings, patience=Patience(attempts=1))
    assert find(SOURCE, settings) is None
    assert [name for name, _ in Store(settings.models_folder).leftovers()] == ["Tiny-4bit"]
    before = len(hub.downloads())
    assert fetch(planned, settings).path.is_dir()
    assert 5000 in [ask.start for ask in hub.downloads()[before:]]
    assert Store(settings.models_folder).leftovers() == []


def test_a_removed_folder_leaves_nothing(repository: dict[str, bytes], settings: Settings) -> None:
    model, store = resolve(SOURCE, settings), Store(settings.models_folder)
    removed = store.set_aside(model.name)
    assert removed is not None
    assert removed.freed == model.size
    store.put_back(removed)
    assert resolve(SOURCE, settings) == model
    assert store.remove(model.name) == model.size
    assert not model.path.exists()


SHARD = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!doctype html><p>Please log in", "HTML page"),
        (b"something else that is long enough", "not a safetensors file"),
    ],
)
def test_a_shard_that_is_something_else_is_named(
    repository: dict[str, bytes], hub: Hub, settings: Settings, body: bytes, message: str
) -> None:
    hub.repositories["org/Tiny-4bit"][SHARD] = body
    with pytest.raises(ModelError, match=message):
        resolve(SOURCE, settings)
    assert find(SOURCE, settings) is None


def test_a_shard_with_other_bytes_is_refused(repository: dict[str, bytes], hub: Hub, settings: Settings) -> None:
    planned = plan(SOURCE, settings)
    place = next(place for place, remote in enumerate(planned.downloads) if remote.file == SHARD)
    spoiled = bytearray(repository[SHARD])
    spoiled[-1] ^= 1
    hub.faults = [Fault() for _ in range(place)] + [Fault(body=bytes(spoiled))]
    with pytest.raises(CorruptFile, match="sha256"):
        fetch(planned, settings)


def test_what_is_no_folder_of_a_model_is_said(repository: dict[str, bytes], hub: Hub, settings: Settings) -> None:
    hub.repositories["org/adapter"] = {"config.json": b"{}", "adapter_model.safetensors": b"x"}
    hub.repositories["org/odd"] = {"config.json": b"{}", "model a.safetensors": b"x"}
    with pytest.raises(ModelError, match=r"no GGUF file, and no config\.json with safetensors"):
        plan("hf:org/adapter", settings)
    with pytest.raises(ModelError, match="refused"):
        plan("hf:org/odd", settings)
    with pytest.raises(ModelError, match="no GGUF file"):
        plan(f"{SOURCE}:Q4_K_M", settings)
