"""What ships is what is there, and no file grows into a room that nobody can oversee."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MOST_LINES = 400
TOP_LEVEL = {
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "uv.lock", "edgeinfer", "metal_kernels", "models",
    "tests", "app",
}  # fmt: skip


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines()]


def test_every_package_is_listed() -> None:
    """setuptools does not look into mapped folders by itself: a folder that is not listed would not ship."""
    directories = PROJECT["tool"]["setuptools"]["package-dir"]
    folders = {(ROOT / path): name for name, path in directories.items()}
    found = {
        ".".join((name, *file.parent.relative_to(folder).parts))
        for folder, name in folders.items()
        for file in folder.rglob("__init__.py")
        if not any(part.is_symlink() for part in file.parents)
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_data_file_is_listed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["edgeinfer"]
    data = [file for file in tracked() if file.parent == ROOT / "edgeinfer" and file.suffix not in (".py", "")]
    assert data
    for file in data:
        assert any(file.match(pattern) for pattern in patterns), file


def test_the_top_level_is_fixed() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_no_file_is_too_long() -> None:
    too_long = {
        str(file.relative_to(ROOT)): lines
        for file in tracked()
        if file.suffix in (".py", ".h", ".cpp", ".metal") and not file.is_symlink()
        if (lines := len(file.read_text().splitlines())) > MOST_LINES
    }
    assert not too_long


def test_no_registry_and_no_machine_is_named() -> None:
    forbidden = ["python" + "hosted", "py" + "pi.org", "npm" + "js.org", "/ro" + "ot/", "/work/" + "main"]
    for file in tracked():
        if file.name == "uv.lock" or file.is_symlink():
            continue
        text = file.read_bytes()
        assert not [word for word in forbidden if word.encode() in text], file
