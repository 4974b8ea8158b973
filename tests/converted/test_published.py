"""Every family as its own library writes it and computes it: tiny models, run once by transformers (golden/make.py)."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import ops
from edgeinfer.converted.checkpoint import Checkpoint, weights_of
from edgeinfer.converted.families import FAMILIES
from tests.converted.mlxlayout import BITS, GROUP, as_mlx, quantized
from tests.converted.published import MODELS, PLACES, tokens, weights
from tests.converted.writing import store, write_folder
from tests.models.test_logits import mean_kl, our_logits

GOLDEN = Path(__file__).parent / "golden"
LAYOUTS: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / "layouts.json.gz").read_bytes()))["models"]


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single operations, which round nothing."""
    monkeypatch.setattr(ops, "fused", False)


def published(kind: str) -> dict[str, np.ndarray]:
    return {name: weights(name, shape) for name, shape in LAYOUTS[kind]["shapes"].items()}


def folder_of(path: Path, kind: str, arrays: dict[str, np.ndarray]) -> Path:
    return write_folder(path, {name: store("F32", each) for name, each in arrays.items()}, LAYOUTS[kind]["config"])


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    found = our_logits(folder_of(tmp_path / "model", kind, published(kind)), tokens())[list(PLACES)]
    expected = np.load(GOLDEN / "logits.npz")[kind]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    assert mean_kl(found, expected) < 1e-6


@pytest.mark.parametrize("kind", MODELS)
def test_mlx_has_the_same_model_under_its_own_names(tmp_path: Path, kind: str) -> None:
    """Quantized as mlx-lm does it: every tensor is worth what MLX's own ``dequantize`` says."""
    config = LAYOUTS[kind]["config"]
    stored, worth = quantized(as_mlx(kind, published(kind), config))
    exact = {name: store("F32", each) for name, each in worth.items()}
    quantization = {"quantization": {"group_size": GROUP, "bits": BITS}}
    write_folder(tmp_path / "floats", exact, config)
    write_folder(tmp_path / "packed", stored, config | quantization)
    folder_of(tmp_path / "published", kind, published(kind))
    with (
        Checkpoint(tmp_path / "published") as source,
        Checkpoint(tmp_path / "floats") as floats,
        Checkpoint(tmp_path / "packed") as packed,
    ):
        packed_ones = [name for name, info in packed.tensors.items() if info.codec.family == "affine"]
        assert len(packed_ones) >= 3
        for name in packed.tensors:
            found = weights_of(packed, name)
            step = 2.0**-11 if name.endswith("attn_k_b.weight") else 1e-7  # turned over: rounded to float16
            np.testing.assert_allclose(found, weights_of(floats, name), step, 2e-6, err_msg=name)
            np.testing.assert_allclose(found, unsplit(source, name), atol=0.05, err_msg=name)


def unsplit(source: Checkpoint, name: str) -> np.ndarray:
    """The published tensor of a name; experts' gates and what they gate may be one tensor there."""
    if name in source.tensors:
        return weights_of(source, name)
    both = weights_of(source, re.sub("_(gate|up)_exps", "_gate_up_exps", name))
    return np.asarray(np.split(both, 2, axis=1)[int("_up_" in name)])


def test_every_family_is_there() -> None:
    """One runs on code of its own, which transformers does not have."""
    assert FAMILIES.keys() - {kind.split()[0] for kind in MODELS} == {"nemotron_labs_diffusion"}
