"""``edgeinfer tokenize``: text in, ids out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


def tokenize(text: bytes, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "edgeinfer", "tokenize", *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, timeout=60)


def test_ids_as_json_and_as_a_table_agree(tiny: Path) -> None:
    ids = json.loads(tokenize(b"Hello there", tiny, "--json").stdout)
    rows = tokenize(b"Hello there", tiny).stdout.decode().splitlines()
    assert [int(row.split()[0]) for row in rows] == ids
    assert ids


def test_control_tokens_come_only_when_asked_for(tiny: Path) -> None:
    plain = json.loads(tokenize(b"<|im_end|>", tiny, "--json").stdout)
    special = json.loads(tokenize(b"<|im_end|>", tiny, "--json", "--special").stdout)
    assert len(plain) > 1
    assert len(special) == 1


def test_no_text_is_no_ids_and_bad_text_is_refused(tiny: Path) -> None:
    assert json.loads(tokenize(b"", tiny, "--json").stdout) == []
    done = tokenize(b"\xff", tiny)
    assert done.returncode == 2
    assert done.stderr == b"error: stdin: byte 0 is not UTF-8 (invalid start byte); convert the text first\n"


def test_what_a_vocabulary_holds_cannot_command_the_terminal(tiny: Path) -> None:
    assert b"\x1b" not in tokenize(b"a\x1b[2Jb", tiny).stdout
