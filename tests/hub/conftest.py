from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from edgeinfer.hub.transport import Patience
from edgeinfer.paths import Paths
from edgeinfer.settings import Settings
from tests.hub.server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of its own for the test, which huggingface_hub and pip take for the real ones."""
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nonexistent/token")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    yield server
    server.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(paths=Paths(tmp_path / "edgeinfer"))


@pytest.fixture
def patience() -> Patience:
    return Patience(attempts=4, connect=2, stall=0.4, backoff=0.01, longest_wait=2)


@pytest.fixture(scope="session")
def payload() -> bytes:
    """Half a megabyte that begins like a model."""
    return b"GGUF" + random.Random(1).randbytes(500_000)
