"""The store: what its manifests say is believed only as far as it can do no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeinfer.hub.model import Plan, Remote
from edgeinfer.hub.names import MAX_NAME, plain_file, quant_of, safe_name, variants
from edgeinfer.hub.store import Store, StoredFile

PLAN = Plan("m", "hf:o/r", "hf:o/r:m.gguf@1", (Remote("", "m.gguf"),), "Q4_0", "1", "mit")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def keep(store: Store, plan: Plan = PLAN, content: bytes = b"GGUF") -> Path:
    home = store.home(plan)
    home.mkdir(parents=True)
    (home / "m.gguf").write_bytes(content)
    store.commit(home, plan, [StoredFile("m.gguf", len(content), "0" * 64)], "llama")
    return home


def test_a_model_is_there_when_its_manifest_and_all_its_bytes_are(store: Store) -> None:
    home = keep(store)
    model = store.by_name("M")
    assert model is not None
    assert (model.path, model.size, model.architecture) == (home / "m.gguf", 4, "llama")
    assert store.by_source("hf:o/r") == store.by_source("hf:o/r:m.gguf@1") == model
    (home / "m.gguf").write_bytes(b"GGU")
    assert store.by_name("m") is None
    assert store.leftovers() == [("m", 3)]


MANIFESTS: dict[str, object] = {
    "no JSON": "{",
    "a list": [],
    "no files": {"files": []},
    "a path up": {"files": [{"name": "../../victim", "size": 4, "sha256": ""}]},
    "an absolute path": {"files": [{"name": "/etc/passwd", "size": 4, "sha256": ""}]},
    "dots": {"files": [{"name": "..", "size": 4, "sha256": ""}]},
    "a NUL": {"files": [{"name": "m\0.gguf", "size": 4, "sha256": ""}]},
    "another version": {"version": 2},
    "a size that is none": {"files": [{"name": "m.gguf", "size": "big", "sha256": ""}]},
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_lies_names_no_model_and_deletes_nothing_else(store: Store, change: object) -> None:
    home = keep(store)
    victim = store.folder.parent / "victim"
    victim.write_bytes(b"keep")
    manifest = home / "model.json"
    good = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(good | change) if isinstance(change, dict) else json.dumps(change)[:1])
    assert store.models() == []
    assert store.by_source("hf:o/r") is None
    assert store.remove("m") == 4
    assert victim.read_bytes() == b"keep"
    assert not home.exists()


def test_removing_leaves_what_is_not_ours_and_does_not_follow_links(store: Store) -> None:
    home = keep(store)
    elsewhere = store.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.gguf").write_bytes(b"keep")
    (home / "notes.txt").write_text("mine")
    (home / "link.gguf").symlink_to(elsewhere / "m.gguf")
    (store.folder / "linked").symlink_to(elsewhere)
    assert store.remove("linked") is None
    store.remove("m")
    assert [entry.name for entry in home.iterdir()] == ["notes.txt"]
    assert (elsewhere / "m.gguf").read_bytes() == b"keep"


def test_an_unfinished_pull_is_listed_and_removed(store: Store) -> None:
    home = store.home(PLAN)
    home.mkdir(parents=True)
    (home / "m.gguf.part").write_bytes(b"GGUF" * 10)
    (home / "m.gguf.part.json").write_text("{}")
    assert store.models() == []
    assert store.leftovers() == [("m", 42)]
    assert store.remove("m") == 42
    assert store.leftovers() == []
    assert store.remove("m") is None


NAMES = {
    "../../etc/passwd": "etc-passwd",
    "CON": "_CON",
    "con.gguf": "_con.gguf",
    "aux": "_aux",
    "console": "console",
    "a\0b\nc": "a-b-c",
    "": "model",
    "...": "model",
    ".hidden": "hidden",
    "trailing. ": "trailing",
    "C:\\Windows\\x": "C-Windows-x",
    "模型": "model",
    "Qwen2.5-0.5B_Q4": "Qwen2.5-0.5B_Q4",
}


@pytest.mark.parametrize(("text", "name"), NAMES.items(), ids=[repr(text) for text in NAMES])
def test_any_text_becomes_a_safe_name(text: str, name: str) -> None:
    assert safe_name(text) == name


def test_long_names_are_cut_and_stay_different() -> None:
    one, two = safe_name("x" * 300 + "a"), safe_name("x" * 300 + "b")
    assert one != two
    assert len(one) == len(two) == MAX_NAME
    shard = plain_file("x" * 300 + "-00001-of-00002.gguf")
    assert shard.endswith("-00001-of-00002.gguf")
    assert len(variants({shard: 1, shard.replace("00001-of", "00002-of"): 1})) == 1


QUANTS = {
    "SmolLM2-135M-Instruct.Q4_1": "Q4_1",
    "gemma-3-270m-q4_k_m": "Q4_K_M",
    "Llama-3.2-1B-Instruct-IQ4_XS": "IQ4_XS",
    "Qwen3-30B-UD-Q4_K_XL": "UD-Q4_K_XL",
    "BF16/model-bf16": "BF16",
    "gpt-oss-20b-mxfp4": "MXFP4",
    "Model-Q4_0_4_8": "Q4_0_4_8",
    "Qwen2.5-7B": "",
    "Q-model": "",
    "model-f16-v2": "F16",
}


@pytest.mark.parametrize(("stem", "quant"), QUANTS.items(), ids=QUANTS)
def test_the_quantization_is_read_from_a_name(stem: str, quant: str) -> None:
    assert quant_of(stem) == quant


@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "folder"])
def test_a_manifest_that_never_ends_is_passed_over(store: Store, kind: str) -> None:
    home = store.folder / "junk"
    home.mkdir(parents=True)
    manifest = home / "model.json"
    match kind:
        case "pipe":
            os.mkfifo(manifest)
        case "device":
            manifest.symlink_to("/dev/zero")
        case "deep":
            manifest.write_text("[" * 100_000)
        case "folder":
            manifest.mkdir()
    assert "junk" not in [model.name for model in store.models()]
