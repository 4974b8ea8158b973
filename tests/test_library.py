"""What is here, what could be, what fits and how fast: against a hub on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edgeinfer import bandwidth, library
from edgeinfer.catalog import catalogue
from edgeinfer.errors import BadInput, ModelNotFound
from edgeinfer.library import Progress, PullStopped
from tests.hub.server import Hub
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tiny: bytes) -> Iterator[Hub]:
    import huggingface_hub.constants

    server = Hub()
    server.repositories["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": tiny}
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    yield server
    server.close()


def named(name: str) -> library.Offer:
    return next(offer for offer in library.offers() if offer.name == name)


def test_a_pull_that_is_stopped_goes_on_where_it_was(hub: Hub, tiny: bytes) -> None:
    assert not named("qwen3-4b").here
    planned = library.plan("qwen3-4b")
    stop = threading.Event()

    def note(progress: Progress) -> None:
        if progress.done:
            stop.set()

    with pytest.raises(PullStopped):
        library.fetch(planned, note, stop.is_set)
    left = named("qwen3-4b").partial
    assert not named("qwen3-4b").here
    model = library.fetch(planned)
    assert model.size == len(tiny)
    if left:
        assert any(ask.headers.get("range", "").startswith("bytes=") for ask in hub.log if ask.path.endswith(".gguf"))
    offer = named("qwen3-4b")
    assert (offer.here, offer.managed, offer.title, offer.architecture) == (True, True, "Qwen3 4B", "llama")
    assert [one.name for one in library.matching(library.offers(), "q4_k_m QWEN edgeinfer")] == ["qwen3-4b"]


def test_what_was_deleted_comes_back_until_the_trash_is_emptied(hub: Hub, tiny: bytes) -> None:
    path = library.fetch(library.plan("qwen3-4b")).path
    removed = library.delete("QWEN3-4B")
    assert (removed.name, removed.freed) == ("qwen3-4b", len(tiny))
    assert not path.exists()
    assert not named("qwen3-4b").here
    library.undo_delete(removed)
    assert path.read_bytes() == tiny
    assert named("qwen3-4b").here
    again = library.delete("qwen3-4b")
    library.empty_trash()
    assert not again.folder.exists()
    with pytest.raises(BadInput, match="gone for good"):
        library.undo_delete(again)
    with pytest.raises(ModelNotFound):
        library.delete("qwen3-4b")


def test_undo_does_not_write_over_a_newer_pull(hub: Hub) -> None:
    library.fetch(library.plan("qwen3-4b"))
    removed = library.delete("qwen3-4b")
    library.fetch(library.plan("qwen3-4b"))
    with pytest.raises(BadInput, match="pulled again"):
        library.undo_delete(removed)
    assert named("qwen3-4b").here


def test_models_of_others_are_offered_and_never_deleted(own_home: Path, tiny: bytes) -> None:
    path = own_home / ".lmstudio/models/someone/repo/Other-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny)
    offer = named("Other-Q8_0")
    assert (offer.origin, offer.managed, offer.quant, offer.size) == ("lm-studio", False, "Q8_0", len(tiny))
    with pytest.raises(BadInput, match="not pulled by edgeinfer"):
        library.delete("Other-Q8_0")
    assert path.read_bytes() == tiny


def test_every_row_of_the_catalogue_says_its_size() -> None:
    for entry in catalogue().values():
        assert bool(entry.size) != bool(entry.about), entry.name
        assert 5e7 < (entry.size or entry.about) < 1e12
    for offer in library.offers():
        assert offer.quant, offer.name
        assert offer.fit is not None
        assert offer.fit.fits == (1.1 * offer.size + 256e6 <= offer.fit.available)


def test_the_forecast_is_that_of_the_bytes_and_never_faster_than_its_overhead() -> None:
    assert bandwidth.forecast(98_362_432, 34.5e9) == pytest.approx(206, rel=0.01)
    assert bandwidth.forecast(253_113_024, 34.5e9) == pytest.approx(107, rel=0.01)
    assert bandwidth.forecast(1, 1e12) < 501


def test_bandwidth_is_measured_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = bandwidth.measure()
    assert 1e8 < measured < 1e13
    figures = iter([3e10, 4e10, 5e10, 6e10])
    monkeypatch.setattr(bandwidth, "measure", lambda: next(figures))
    monkeypatch.setattr(psutil, "getloadavg", lambda: (100.0, 0.0, 0.0))
    assert bandwidth.bandwidth(tmp_path) == 3e10  # a busy machine: not kept
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert bandwidth.bandwidth(tmp_path / "new") == 4e10
    assert bandwidth.bandwidth(tmp_path / "new") == 4e10
    file = tmp_path / "new/bandwidth.json"
    for text in ("", "[]", '{"machine": 1}', json.dumps(json.loads(file.read_text()) | {"machine": "other"})):
        file.write_text(text)
        assert bandwidth.bandwidth(tmp_path / "new") in (5e10, 6e10)
        figures = iter([5e10, 6e10])


def test_formats_of_keys_and_values_come_with_what_they_save_and_cost(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", heads=2, kv_heads=1, head_dim=64, context=4096)
    found = {each.name: each for each in library.kv_formats(str(path))}
    assert [name for name, each in found.items() if each.chosen] == ["k8v4"]
    assert found["exact"].bytes_ratio == 1
    assert found["k8v4"].bytes_ratio == pytest.approx(0.391, abs=0.001)
    assert found["exact"].longest == 4096
    assert found["k4v4"].kl is not None
    assert found["k4v4"].where
    ratios = [each.bytes_ratio for each in found.values()]
    assert ratios == sorted(ratios, reverse=True)
    with pytest.raises(ModelNotFound, match="gemma3-270m is not on this machine; fetch it"):
        library.kv_formats("gemma3-270m")
