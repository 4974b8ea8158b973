"""What each format of keys and values costs on a text, with nothing kept exact."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.cache.formats import EXACT, FORMATS, KVFormat
from edgeinfer.cache.kv import KVShape
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.measures import divergences
from edgeinfer.evaluation.rounded import RoundedModel
from edgeinfer.evaluation.scores import Divergence
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline

CHOSEN = (
    "k8v8", "k8v4", "k6v4", "k5v4", "k4v4", "k4v3", "k3v3", "q8_0", "q4_0", "affine8-64", "affine4-32", "affine4-64",
    "fp8", "nvfp4", "turboquant4", "turboquant4-qjl", "turboquant3.5", "turboquant3", "polarquant",
)  # fmt: skip
"""Compared where nobody chooses: ours, and of the others those that are in use."""


@dataclass(frozen=True, slots=True)
class FormatCost:
    """A format with its bytes, of all layers, and how far it takes the model. bytes_ratio: of float16."""

    format: str
    bytes_per_token: float
    bytes_ratio: float
    divergence: Divergence

    def to_json(self) -> dict[str, object]:
        found = self.divergence
        return {
            "format": self.format,
            "kl": found.mean,
            "kl_error": found.error,
            "kl_median": found.median,
            "kl_p999": found.p999,
            "flips": found.flips,
            "ppl_ratio": found.ppl_ratio,
            "bytes_per_token": self.bytes_per_token,
            "bytes_ratio": self.bytes_ratio,
        }


def checked_formats(names: Sequence[str], distinct: bool = True) -> list[KVFormat]:
    """The formats of these names, each once if ``distinct``. Raises BadRequest for one that there is not."""
    for name in names:
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(FORMATS)}"
            raise BadRequest(f"format={name!r:.40}: unknown; {hint}", "formats")
    return [FORMATS[name] for name in (dict.fromkeys(names) if distinct else names)]


def compare_formats(
    path: Path,
    formats: Sequence[KVFormat],
    windows: Sequence[Sequence[int]],
    threads: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[FormatCost]:
    """What it costs to round every key and value to each format, against float16.

    All rows of the windows count. The weights are loaded once, in float32 on a CPU. Raises what loading raises.
    """
    model = RoundedModel(path, EXACT, len(windows[0]), threads)
    try:
        sides = [model.side(form) for form in formats]
        found = divergences(model.side(EXACT), sides, windows, 0, on_progress)
    finally:
        model.backend.close()
    with open_model(path) as file:
        shapes = [shape for shape in build(file, Outline).kv_shapes if isinstance(shape, KVShape)]
    whole = sum(EXACT.row_bytes(shape.head_dim) * shape.kv_heads for shape in shapes)
    costs = []
    for form, divergence in zip(formats, found, strict=True):
        size = sum(form.row_bytes(shape.head_dim) * shape.kv_heads for shape in shapes)
        costs.append(FormatCost(form.name, size, size / whole if whole else 1.0, divergence))
    return costs
