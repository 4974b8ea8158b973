"""One small matrix as each format's own library stores it, and as it decodes it (golden/make_codes.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.converted.folder import Folder
from edgeinfer.converted.quantized import scheme_of
from edgeinfer.quant.codec import decode
from tests.converted.writing import write_safetensors

STORED = np.load(Path(__file__).parent / "golden" / "codes.npz")
ROWS: dict[str, Any] = json.loads(bytes(STORED["rows"]))
KINDS = {"uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
         "float32": "F32", "float8_e4m3fn": "F8_E4M3"}  # fmt: skip
ROUNDED = {"gptq": 2.0**-11, "compressed-tensors": 2.0**-8}
"""Libraries that multiply in float16 or bfloat16 what ours keeps exact: one rounding of each weight."""


@pytest.mark.parametrize("name", ROWS)
def test_weights_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    tensors = {f"m{end}": (KINDS[kind], STORED[f"{name}|{end}"]) for end, kind in row["dtypes"].items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": row["settings"]}))
    folder = Folder(tmp_path)
    scheme, settings = scheme_of(folder)
    assert scheme is not None
    matrix = scheme(folder, "m", settings)
    found, expected = decode(matrix.codec, matrix.make()), STORED[f"{name}|"]
    step = ROUNDED.get(row["settings"]["quant_method"], 0)
    np.testing.assert_allclose(found, expected, rtol=step, atol=step * np.abs(expected).max())
    folder.close()


def test_every_library_is_there() -> None:
    made = {row["made with"].split()[0] for row in ROWS.values()}
    assert made == {"bitsandbytes", "compressed-tensors", "autoawq", "gptqmodel"}
