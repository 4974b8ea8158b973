"""Which backend runs a file, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer import backends, ops
from edgeinfer.backends import Choice, choose
from edgeinfer.errors import BackendUnavailable, BadRequest, UnsupportedModel
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.loading import fit
from tests.tiny import tiny_gguf


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "llama.gguf")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A valid file of an architecture that only llama.cpp knows."""
    return tiny_gguf(tmp_path / "foreign.gguf", metadata={"general.architecture": "starcoder"})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with llama.cpp and without an NVIDIA GPU, unless a test says otherwise."""
    monkeypatch.setattr(backends, "installed", lambda: True)
    monkeypatch.setattr(backends, "nvidia_present", lambda: False)
    monkeypatch.setattr(backends, "gpu_offload", lambda: False)
    monkeypatch.setattr(ops, "obstacle", "")
    return monkeypatch


def chosen(path: Path, wanted: str = "auto") -> Choice:
    with open_gguf(path) as file:
        return choose(file, wanted)


def test_mlx_runs_what_it_can(llama: Path) -> None:
    choice = chosen(llama)
    assert choice.name == "mlx"
    assert choice.why.startswith("MLX runs llama on ")


def test_the_wanted_one_is_taken(llama: Path) -> None:
    assert chosen(llama, "mlx") == Choice("mlx", "asked for")
    assert chosen(llama, "llama.cpp") == Choice("llama.cpp", "asked for")


def test_llama_cpp_takes_what_mlx_cannot(foreign: Path) -> None:
    choice = chosen(foreign)
    assert choice.name == "llama.cpp"
    assert "starcoder" in choice.why


def test_llama_cpp_takes_over_with_a_gpu_and_a_build_for_it(llama: Path, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(backends, "nvidia_present", lambda: True)
    assert chosen(llama).name == "mlx"
    machine.setattr(backends, "gpu_offload", lambda: True)
    assert chosen(llama) == Choice("llama.cpp", "an NVIDIA GPU and a CUDA build are present")


def test_a_model_too_large_for_mlx_goes_to_llama_cpp(llama: Path, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(fit, "available_memory", lambda: 1000)
    choice = chosen(llama)
    assert choice.name == "llama.cpp"
    assert "free" in choice.why


def test_without_llama_cpp_the_command_that_installs_it_is_named(
    llama: Path, foreign: Path, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(backends, "installed", lambda: False)
    assert chosen(llama).name == "mlx"
    for path, wanted in ((foreign, "auto"), (llama, "llama.cpp")):
        with pytest.raises(BackendUnavailable, match="pip install") as caught:
            chosen(path, wanted)
        assert caught.value.install.startswith("pip install")


def test_what_mlx_cannot_do_is_refused_when_mlx_is_wanted(foreign: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"--backend llama\.cpp may run it"):
        chosen(foreign, "mlx")


def test_an_unknown_backend_is_named(llama: Path) -> None:
    with pytest.raises(BadRequest, match="backend='vllm'"):
        chosen(llama, "vllm")


def test_a_faster_path_that_is_missing_is_told_of(llama: Path, machine: pytest.MonkeyPatch) -> None:
    assert chosen(llama).advice == ""
    machine.setattr(ops, "obstacle", "the native path was not built; to get it, reinstall")
    for wanted in ("auto", "mlx"):
        assert chosen(llama, wanted).advice.startswith("the native path was not built")
    assert chosen(llama, "llama.cpp").advice == ""
