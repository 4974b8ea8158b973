"""``edgeinfer eval`` as a person types it, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.cli.heatmap import heatmap, write_png
from edgeinfer.evaluation.needle import Cell
from tests.tiny import tiny_gguf

TEXT = "the one and the other, and then there is the end of it all. " * 40


def edgeinfer(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "edgeinfer", "eval", *map(str, arguments)]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    if code:
        assert len(done.stderr.splitlines()) == 1
        return done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("m") / "tiny.gguf", head_dim=32)


def test_perplexity_of_stdin(tiny: Path) -> None:
    row = json.loads(edgeinfer("ppl", tiny, "-", "--window", 64, "--windows", 3, "--json"))
    assert row["tokens"] == 3 * 31
    assert edgeinfer("ppl", tiny, "-", "--window", 64, "--windows", 3).startswith(f"perplexity {row['ppl']:.4f} ±")


def test_divergence_from_itself_another_file_another_backend_and_another_format(tiny: Path, tmp_path: Path) -> None:
    common = ("-", "--window", 64, "--windows", 2, "--json")
    other = tiny_gguf(tmp_path / "other.gguf", seed=1, head_dim=32)
    assert json.loads(edgeinfer("kld", tiny, *common, "--against", tiny))["kl"] < 1e-9
    assert json.loads(edgeinfer("kld", tiny, *common, "--against", other))["kl"] > 1e-3
    backends = json.loads(edgeinfer("kld", tiny, *common, "--backend", "mlx", "--against-backend", "llama.cpp"))
    assert 0 < backends["kl"] < 1e-3
    wide, narrow = (json.loads(edgeinfer("kld", tiny, *common, "--kv-b", name)) for name in ("k8v8", "k3v3"))
    assert 0 < wide["kl"] < narrow["kl"]
    table = edgeinfer("kld", tiny, "-", "--window", 64, "--kv-b", "k3v3")
    assert [line.split("  ")[0] for line in table.splitlines()] == [
        "mean KL", "median", "99.9 %", "same best token", "perplexity", "tokens",
    ]  # fmt: skip


def test_formats_side_by_side(tiny: Path) -> None:
    arguments = ("kv", tiny, "-", "--window", 64, "--formats", "exact,k8v4,q8_0")
    rows = {row["format"]: row for row in json.loads(edgeinfer(*arguments, "--json"))}
    assert list(rows) == ["exact", "k8v4", "q8_0"]
    assert {"format", "kl", "flips", "ppl_ratio", "bytes_per_token", "bytes_ratio"} <= set(rows["exact"])
    assert (rows["exact"]["kl"], rows["exact"]["flips"], rows["exact"]["bytes_ratio"]) == (0, 0, 1)
    assert 0 < rows["q8_0"]["kl"] < rows["k8v4"]["kl"]
    assert rows["q8_0"]["bytes_per_token"] == 2 * 2 * 2 * 34
    lines = edgeinfer(*arguments).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["exact", "q8_0", "k8v4"]


def test_needles_in_the_terminal_and_in_a_picture(tiny: Path, tmp_path: Path) -> None:
    picture = tmp_path / "map.png"
    shown = edgeinfer("needle", tiny, "--lengths", "200,400", "--depths", 3, "--png", picture)
    lines = shown.splitlines()
    assert lines[2].split() == ["depth", "200", "400"]
    assert [line.split()[0] for line in lines[3:6]] == ["0", "50", "100"]
    assert lines[6].startswith("all together: ")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_cells_are_shaded_by_what_was_found(tmp_path: Path) -> None:
    cells = [Cell(512, 0.0, 0.0), Cell(512, 1.0, 1.0), Cell(1024, 0.0, 0.5), Cell(1024, 1.0, 1.0)]
    first, second, mean = heatmap(cells).splitlines()[1:]
    assert (first.split()[2:], second.split()[2:]) == (["0", "▒▒▒", "50"], ["███", "100", "███", "100"])
    assert mean == "all together: 62.5 %"
    write_png(cells, tmp_path / "map.png", "a title")
    from matplotlib.image import imread

    assert np.ptp(imread(tmp_path / "map.png")[..., :3]) > 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ppl", "MODEL", "/no/such/text"), "No such file"),
        (("ppl", "MODEL", "BINARY"), "byte 3 is not UTF-8"),
        (("ppl", "MODEL", "-", "--window", 400, "--windows", 1, "--threads", 1), ""),
        (("ppl", "MODEL", "-", "--window", 5000), "a window takes 5000"),
        (("kv", "MODEL", "-", "--formats", "k8v5"), "did you mean 'k8v8'"),
        (("kld", "MODEL", "-"), "compare with one thing"),
        (("kld", "MODEL", "-", "--kv-b", "k4v4", "--against", "MODEL"), "compare with one thing"),
        (("needle", "MODEL", "--lengths", "1,x"), "whole numbers with commas"),
        (("needle", "MODEL", "--lengths", "5000"), "trained for 512 tokens"),
    ],
)
def test_bad_input_is_one_line(tiny: Path, tmp_path: Path, arguments: tuple[object, ...], message: str) -> None:
    (tmp_path / "binary").write_bytes(b"abc\xff")
    places = {"MODEL": tiny, "BINARY": tmp_path / "binary"}
    filled = [places.get(str(word), word) for word in arguments]
    assert message in edgeinfer(*filled, code=2 if message else 0)
