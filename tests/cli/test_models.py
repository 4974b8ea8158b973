"""pull, list, show, rm and du as a person types them, against a hub on this machine."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.tables import cells, facts, table
from edgeinfer.library import Fit
from tests.hub.server import Fault, Hub, sha256
from tests.tiny import tiny_gguf

COMMAND = [sys.executable, "-m", "edgeinfer"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tiny: bytes) -> Iterator[Hub]:
    server = Hub()
    server.repositories["org/Tiny-GGUF"] = {"Tiny-Q8_0.gguf": tiny, "Tiny-Q4_K_M.gguf": tiny}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    yield server
    server.close()


def edgeinfer(*arguments: object, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )
    assert done.returncode == code, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_facts_go_on_below_their_beginning_where_the_terminal_ends() -> None:
    rows = [("name", "tiny"), ("special", "bos 1 '<s>', eos 2 '</s>'\x1b[2J, unknown 0"), ("path", "/a/" + "b" * 40)]
    assert facts(rows, 32, indent="  ").splitlines() == [
        "  name     tiny",
        "  special  bos 1 '<s>', eos 2",
        "           '</s>'␛[2J, unknown 0",
        "  path     /a/" + "b" * 40,
    ]
    assert facts(rows, sys.maxsize).splitlines()[1] == "special  bos 1 '<s>', eos 2 '</s>'␛[2J, unknown 0"


def test_a_model_from_pull_to_rm(hub: Hub, tiny: bytes, own_home: Path) -> None:
    pulled = edgeinfer("pull", "hf:org/Tiny-GGUF")
    told = pulled.stderr.splitlines()
    labels = [line.split()[0] for line in told]
    plan = ["model", "licence", "quant", "download", "disk", "memory", "speed"]
    assert labels == [*plan, "QUANT", "*", "Q8_0", "fetching", "have"]
    assert "Q4_K_M" in told[2]
    assert "free" in told[4]
    assert "fits: about" in told[5]
    path = own_home / "edgeinfer/models/Tiny-Q4_K_M/Tiny-Q4_K_M.gguf"
    assert pulled.stdout == f"Tiny-Q4_K_M: {path}\n"
    assert path.read_bytes() == tiny
    asked = len(hub.log)
    assert "here already" in edgeinfer("pull", "hf:org/Tiny-GGUF").stderr
    assert len(hub.log) == asked

    listed = edgeinfer("list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "SIZE", "QUANT", "ARCH", "ORIGIN"]
    assert listed[1].split() == ["Tiny-Q4_K_M", *listed[1].split()[1:3], "Q4_K_M", "llama", "edgeinfer"]
    (row,) = json.loads(edgeinfer("list", "--json").stdout)
    assert (row["name"], row["size"], row["path"]) == ("Tiny-Q4_K_M", len(tiny), str(path))

    used = json.loads(edgeinfer("du", "--json").stdout)
    assert used["models"] == [{"name": "Tiny-Q4_K_M", "size": len(tiny), "state": "pulled"}]
    assert used["total"] == len(tiny)
    assert "total" in edgeinfer("du").stdout

    assert "freed" in edgeinfer("rm", "tiny-q4_k_m").stdout
    assert not path.parent.exists()
    assert "no models yet" in edgeinfer("list").stderr
    edgeinfer("rm", "Tiny-Q4_K_M", code=2)


def test_every_quant_of_a_repository_is_listed_with_size_fit_and_speed(hub: Hub) -> None:
    found = json.loads(edgeinfer("pull", "hf:org/Tiny-GGUF", "--list", "--json").stdout)
    assert [(row["quant"], row["chosen"]) for row in found] == [("Q4_K_M", True), ("Q8_0", False)]
    assert all(row["fits"] and row["forecast"] > 1 and row["size"] > 1000 for row in found)
    lines = edgeinfer("pull", "hf:org/Tiny-GGUF", "--list").stdout.splitlines()
    assert lines[0].split() == ["QUANT", "SIZE", "MEMORY", "FORECAST"]
    assert lines[1].split()[:2] == ["*", "Q4_K_M"]
    assert "tokens/s" in lines[2]
    assert not hub.downloads()


def test_pull_in_json_is_one_object_a_line(hub: Hub, tiny: bytes) -> None:
    first, *progress, last = rows(edgeinfer("pull", "hf:org/Tiny-GGUF:q8_0", "--json"))
    assert (first["event"], first["quant"], first["download_bytes"]) == ("plan", "Q8_0", len(tiny))
    assert first["disk_free"] > 0
    assert first["fits"] is True
    assert {row["event"] for row in progress} == {"progress"}
    assert progress[-1]["done"] == progress[-1]["total"] == len(tiny)
    assert (last["event"], last["sha256"]) == ("done", [sha256(tiny)])
    assert Path(last["path"]).is_file()
    (again,) = rows(edgeinfer("pull", "hf:org/Tiny-GGUF:q8_0", "--json"))
    assert again == last


def test_show_says_what_the_header_holds(hub: Hub, tmp_path: Path) -> None:
    hostile = {"general.name": "evil\x1b]0;pwned\x07", "general.license": "MIT", ".context_length": 4096}
    path = tiny_gguf(tmp_path / "odd-Q8_0.gguf", codec="q8_0", metadata=hostile)
    shown = edgeinfer("show", path).stdout
    facts = {line.split()[0]: line for line in shown.splitlines() if line[0] != " "}
    assert "evil␛]0;pwned␇" in facts["title"]
    assert "llama, 2 layers of 64, 4 heads, 2 of keys and values" in facts["architecture"]
    assert "Q8_0: q8_0" in facts["quant"]
    assert "4,096 tokens" in facts["context"]
    assert "MIT" in facts["licence"]
    assert "eos" in facts["special"]
    assert facts["backend"].split()[1] in ("mlx:", "llama.cpp:")
    row = json.loads(edgeinfer("show", path, "--json").stdout)
    assert row["title"] == hostile["general.name"]
    assert row["parameters"] == sum_of_weights(path)
    assert row["mix"][0]["codec"] == "q8_0"
    assert row["template"].startswith("{%")
    assert row["backend"] in ("mlx", "llama.cpp")


def sum_of_weights(path: Path) -> int:
    import gguf

    return sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors)


def test_show_of_what_is_not_here_or_no_model(tmp_path: Path) -> None:
    assert "edgeinfer pull qwen3-4b" in edgeinfer("show", "qwen3-4b", code=2).stderr
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    assert "HTML page" in edgeinfer("show", tmp_path / "m.gguf", code=2).stderr


def test_models_of_others_are_listed_shown_and_never_removed(own_home: Path, tiny: bytes) -> None:
    path = own_home / ".lmstudio/models/someone/repo/Théirs-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny)
    assert "lm-studio" in edgeinfer("list").stdout
    assert "Théirs-Q8_0" in edgeinfer("show", "Théirs-Q8_0").stdout
    for name in ("Théirs-Q8_0", path):
        assert f"was not pulled by edgeinfer; delete it where it is: {path}" in edgeinfer("rm", name, code=2).stderr
    assert json.loads(edgeinfer("du", "--json").stdout)["others"] == {"lm-studio": len(tiny)}
    assert path.read_bytes() == tiny
    (only,) = json.loads(edgeinfer("list", own_home / ".lmstudio", "--json").stdout)
    assert (only["origin"], only["architecture"]) == ("file", "llama")


def test_the_catalogue_is_listed(own_home: Path) -> None:
    lines = edgeinfer("list", "--catalogue").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[1:]]
    assert names == [row["name"] for row in json.loads(edgeinfer("list", "--catalogue", "--json").stdout)]
    assert names[0] == "smollm2-135m"
    assert "edgeinfer list --catalogue" in edgeinfer("pull", "xyzzy", code=2).stderr


def test_a_file_that_is_broken_is_listed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "broken-Q4_0.gguf").write_bytes(b"GGUF" + bytes(100))
    assert edgeinfer("list", tmp_path).stdout.splitlines()[1].split()[3:] == ["Q4_0", "?", "file"]


FAILURES = {
    "a typo": (("pull", "smolm2-135m"), {}, 2, "did you mean smollm2-135m"),
    "no such repository": (("pull", "hf:org/none"), {}, 2, "no such repository"),
    "no such quant": (("pull", "hf:org/Tiny-GGUF:Q2_K"), {}, 2, "it has Q4_K_M (386 kB), Q8_0 (386 kB)"),
    "offline": (("pull", "qwen3-4b"), {"EDGEINFER_OFFLINE": "1"}, 5, "offline mode"),
    "offline, the hub's way": (("pull", "qwen3-4b"), {"HF_HUB_OFFLINE": "1"}, 5, "offline mode"),
    "a hub that is not there": (("pull", "https://127.0.0.1:1/m.gguf"), {}, 5, "gave up"),
    "an unknown flag": (("pull", "--fast", "m"), {}, 2, "--fast"),
}


@pytest.mark.parametrize(("arguments", "variables", "code", "words"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_its_exit_code(
    hub: Hub,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    code: int,
    words: str,
) -> None:
    failed = edgeinfer(*arguments, code=code, **variables)
    assert words in failed.stderr
    assert failed.stdout == ""
    assert len(failed.stderr.splitlines()) == 1


def test_an_interrupted_pull_exits_130_and_goes_on_later(hub: Hub, tiny: bytes, own_home: Path) -> None:
    hub.piece, hub.delay = 1 << 13, 0.05
    pulling = subprocess.Popen([*COMMAND, "pull", "hf:org/Tiny-GGUF"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not any(ask.sent > 1 << 15 for ask in hub.downloads()):
        time.sleep(0.01)
    pulling.send_signal(signal.SIGINT)
    _, said = pulling.communicate(timeout=20)
    assert pulling.returncode == 130
    assert "Traceback" not in said
    (left,) = json.loads(edgeinfer("du", "--json").stdout)["models"]
    assert (left["name"], left["state"]) == ("Tiny-Q4_K_M", "unfinished")
    assert left["size"] > 1 << 14
    hub.delay = 0
    edgeinfer("pull", "hf:org/Tiny-GGUF")
    assert hub.downloads()[-1].start > 1 << 14
    assert (own_home / "edgeinfer/models/Tiny-Q4_K_M/Tiny-Q4_K_M.gguf").read_bytes() == tiny


def test_an_unfinished_pull_can_be_removed(hub: Hub, own_home: Path) -> None:
    hub.faults = [Fault(body=b"GGUF" + bytes(9))]
    edgeinfer("pull", "hf:org/Tiny-GGUF", code=5)
    home = own_home / "edgeinfer/models/Tiny-Q4_K_M"
    home.mkdir(exist_ok=True)
    (home / "Tiny-Q4_K_M.gguf.part").write_bytes(bytes(1234))
    assert json.loads(edgeinfer("rm", "Tiny-Q4_K_M", "--json").stdout) == {"name": "Tiny-Q4_K_M", "freed": 1234}


def test_on_a_terminal_there_is_a_bar(hub: Hub) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run(
        [*COMMAND, "pull", "hf:org/Tiny-GGUF"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert done.returncode == 0
    assert b"Tiny-Q4_K_M.gguf: 100%" in seen
    assert b"B/s" in seen


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux says EIO at the end of a terminal
        return b""


def test_tables_are_aligned_cut_to_the_terminal_and_sanitized() -> None:
    lines = table(
        ("NAME", "SIZE", "ORIGIN"),
        [("a" * 100, "98 MB", "edgeinfer"), ("模型\x1b[2J", "1.3 GB", "ollama"), ("e\u0301", "9 kB", "file")],
        80,
        frozenset({1}),
    ).splitlines()
    assert max(cells(line) for line in lines) == 80
    assert "…" in lines[1]
    assert "模型␛[2J" in lines[2]
    ends = [cells(line[: line.index(unit) + 2]) for line, unit in zip(lines[1:], ("MB", "GB", "kB"), strict=True)]
    assert len(set(ends)) == 1
    assert table(("A", "B"), [("x" * 300, "y")], sys.maxsize).splitlines()[1] == "x" * 300 + "  y"


def test_what_fits_is_said_with_its_numbers() -> None:
    assert str(Fit(100_000_000, 2_000_000_000)).startswith("fits: about 100 MB of 2.0 GB")
    assert str(Fit(3_000_000_000, 2_000_000_000)).startswith("will not fit: about 3.0 GB of 2.0 GB")
