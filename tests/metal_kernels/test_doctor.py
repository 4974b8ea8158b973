"""``edgeinfer doctor --kernels``: here without a GPU, and with one that the emulator plays."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner

from edgeinfer import ops
from edgeinfer.cache import kernel_checks as page_checks
from edgeinfer.cli.doctor import command
from edgeinfer.metal_kernels import attention
from edgeinfer.ops import kernel_checks
from edgeinfer.quant.codec import CODECS
from tests.metal_kernels.emulator import emulated


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a Metal GPU")
def test_without_a_gpu_it_says_so() -> None:
    result = CliRunner().invoke(command, ["--kernels", "--json"])
    assert result.exit_code == 0
    assert "no Metal GPU here" in json.loads(result.stdout)["Metal kernels"]["none run"]


@pytest.mark.usefixtures("emulator_only")
@pytest.mark.parametrize("codec", ["q8_0", "q6_k"])
def test_kernels_pass_on_the_emulator(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "device", lambda: "metal")
    monkeypatch.setattr(kernel_checks, "CODECS", {codec: CODECS[codec]})
    monkeypatch.setattr(attention, "HEAD_DIMS", (64,))
    checked = kernel_checks.check

    def smaller(**_: Any) -> Any:
        return checked(outputs=9, columns=256, repeats=1)

    monkeypatch.setattr(kernel_checks, "check", smaller)
    for name, value in {"HEAD_DIMS": (), "SIZE": 64, "LENGTH": 512, "HEADS": 1, "KV_HEADS": 1}.items():
        monkeypatch.setattr(page_checks, name, value)
    monkeypatch.setattr(page_checks, "FORMATS", {"k8v4": page_checks.FORMATS["k8v4"]})
    with emulated():
        result = CliRunner().invoke(command, ["--kernels"])
    assert result.exit_code == 0, result.output
    assert result.output.count("passed, error") == 2 * len(kernel_checks.ROWS) + 6 + 2
    assert "copies the weights: " in result.output


@pytest.mark.usefixtures("emulator_only")
def test_a_kernel_that_fails_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = kernel_checks.Verdict("qmv, q8_0, 1 rows", 0.5, 1e-6, 1.0)
    monkeypatch.setattr(ops, "device", lambda: "metal")
    monkeypatch.setattr(kernel_checks, "check", lambda **_: iter([failed]))
    result = CliRunner().invoke(command, ["--kernels"])
    assert result.exit_code == 1
    assert "FAILED, error 5.0e-01" in result.output


def test_a_kernel_that_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise RuntimeError("[metal::Device] Unable to build metal library from source\nmore")

    monkeypatch.setattr(mx.fast, "metal_kernel", refuse)
    monkeypatch.setattr(kernel_checks, "CODECS", {"q8_0": CODECS["q8_0"]})
    verdicts = list(kernel_checks.check(outputs=8, columns=64, repeats=1))
    assert not any(verdict.passed for verdict in verdicts)
    assert str(verdicts[0]) == "FAILED: [metal::Device] Unable to build metal library from source"
