"""The script for machines with an NVIDIA GPU: where there is none, it says so and does nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "cuda"


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_it_is_skipped_and_says_so(tmp_path: Path) -> None:
    """Whatever this machine has: the script sees none of it."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    ran = subprocess.run(["/bin/bash", SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "skipped: no NVIDIA GPU here\n", "")
    assert subprocess.run(["/bin/bash", "-n", SCRIPT], check=False).returncode == 0
