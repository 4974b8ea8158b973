"""Settings come from one file and a few variables, and a mistake in them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.errors import BadInput
from edgeinfer.settings import load_settings, model_folders


@pytest.fixture
def config(own_home: Path) -> Path:
    file = own_home / "edgeinfer" / "config.toml"
    file.parent.mkdir()
    return file


def test_without_a_file_the_defaults_hold(own_home: Path) -> None:
    settings = load_settings()
    assert (settings.model, settings.backend, settings.context) == ("smollm2-135m", "auto", 0)
    assert settings.models_folder == own_home / "edgeinfer" / "models"


def test_the_file_sets_values(config: Path) -> None:
    config.write_text('model = "qwen3-0.6b"\nthreads = 3\nmodels = "~/weights"\n')
    settings = load_settings()
    assert (settings.model, settings.threads) == ("qwen3-0.6b", 3)
    assert settings.models_folder == Path.home() / "weights"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("contxt = 5", "unknown key 'contxt'; did you mean 'context'"),
        ("paths = 1", "unknown key 'paths'"),
        ('threads = "two"', "threads='two'; expected a whole number"),
        ("threads = -1", "threads=-1; expected a whole number, 0 or more"),
        ("threads = true", "threads=True; expected a whole number"),
        ("keep_outputs = 1", "keep_outputs=1; expected true or false"),
        ("model = 3", "model=3; expected a string"),
        ("model = ", "Invalid value"),
        ("model = " + 5000 * "[", "recursion"),
        ("#" * (1 << 20) + "#", "larger than 1048576 bytes"),
        ('models = "a\\u0000b"', "models: .* cannot be a folder"),
        ('models = "~no-such-user/m"', "models: .* cannot be a folder"),
        (f'models = "{300 * "m"}"', "models: .* cannot be a folder: File name too long"),
    ],
)
def test_a_mistake_is_named(config: Path, content: str, complaint: str) -> None:
    config.write_text(content)
    with pytest.raises(BadInput, match=complaint):
        load_settings()


def test_a_file_that_is_no_text_is_named(config: Path) -> None:
    config.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"config\.toml"):
        load_settings()


@pytest.mark.parametrize("variable", ["EDGEINFER_HOME", "OLLAMA_MODELS", "HF_HOME"])
@pytest.mark.parametrize("folder", ["~no-such-user/x", "/tmp/" + 300 * "x"])
def test_a_variable_that_names_no_folder_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, folder: str) -> None:
    monkeypatch.setenv(variable, folder)
    read = load_settings if variable == "EDGEINFER_HOME" else model_folders
    with pytest.raises(BadInput, match=f"{variable}: .* cannot be a folder"):
        read()


def test_offline_is_a_variable_of_ours_or_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_settings().offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_settings().offline


def test_folders_named_by_variables_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folders = model_folders()
    assert folders["ollama"][0] == tmp_path / "ollama"
    assert folders["hugging-face"][0] == tmp_path / "hf" / "hub"
