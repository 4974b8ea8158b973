"""What each format of keys and values costs on a text, with nothing kept exact."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.cache.formats import EXACT, FORMATS, KVFormat
from edgeinfer.cache.kv import KVShape
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.measures import Progress, divergences, scored_from, silent
from edgeinfer.evaluation.rounded import RoundedModel
from edgeinfer.evaluation.running import allocated, running_costs
from edgeinfer.evaluation.scores import Divergence
from edgeinfer.loading.fit import needs
from edgeinfer.loading.loader import kv_policy
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline

CHOSEN = (
    "k8v8", "k8v4", "k6v4", "k5v4", "k4v4", "k4v3", "k3v3", "q8_0", "q4_0", "affine8-64", "affine4-32", "affine4-64",
    "fp8", "nvfp4", "turboquant4", "turboquant4-qjl", "turboquant3.5", "turboquant3", "polarquant",
)  # fmt: skip
"""Compared where nobody chooses: ours, and of the others those that are in use."""
_MEASURED = (1024, 1536)
"""Tokens between which the growth of a cache is measured: whole pages."""


@dataclass(frozen=True, slots=True)
class FormatCost:
    """A format with its bytes, of all layers, and how far it takes the model. bytes_ratio: of float16."""

    format: str
    bytes_per_token: float
    bytes_ratio: float
    divergence: Divergence
    decode: Mapping[int, float] = field(default_factory=dict)  # depth: tokens a second
    held: Mapping[int, int] = field(default_factory=dict)  # depth: bytes that are really allocated

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
            "decode": {str(depth): rate for depth, rate in self.decode.items()},
            "held": {str(depth): size for depth, size in self.held.items()},
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
    regions: bool = False,
    threads: int = 0,
    on_progress: Progress = silent,
) -> list[FormatCost]:
    """What each format costs, against exact keys and values.

    Every key and value is rounded, and all rows of the windows count; or, with ``regions``, those alone that a running
    cache would, and the second half of each window counts. The weights are loaded once, in float32 on a CPU. Bytes are
    those that a longer sequence allocates for each further token, where the model's context lets that be measured.
    Raises what loading raises.
    """
    if regions:
        names = [form.name for form in formats]
        found = running_costs(path, names, windows, scored_from(windows), threads, on_progress)
    else:
        found = _rounding_costs(path, formats, windows, threads, on_progress)
    whole, sizes = _bytes_per_token(path, formats, threads)
    return [
        FormatCost(form.name, size, size / whole if whole else 1.0, divergence)
        for form, size, divergence in zip(formats, sizes, found, strict=True)
    ]


def _rounding_costs(
    path: Path,
    formats: Sequence[KVFormat],
    windows: Sequence[Sequence[int]],
    threads: int,
    on_progress: Progress,
) -> list[Divergence]:
    model = RoundedModel(path, EXACT, len(windows[0]), threads)
    try:
        sides = [model.side(form) for form in formats]
        return divergences(model.side(EXACT), sides, windows, 0, on_progress)
    finally:
        model.backend.close()


def _bytes_per_token(path: Path, formats: Sequence[KVFormat], threads: int) -> tuple[float, list[float]]:
    """Of a float16 cache, and of each format: measured where pages have kernels and fit the context, else coded."""
    with open_model(path) as file:
        outline = build(file, Outline)
        shapes = [shape for shape in outline.kv_shapes if isinstance(shape, KVShape)]
        whole = sum(EXACT.row_bytes(shape.head_dim) * shape.kv_heads for shape in shapes)
        sizes = [float(sum(form.row_bytes(each.head_dim) * each.kv_heads for each in shapes)) for form in formats]
        measured = [index for index, form in enumerate(formats) if any(form.widths)]
        if measured and needs(file).trained_context >= _MEASURED[1]:
            exact = MLXBackend.load(path, _MEASURED[1], threads)
            for index in measured:
                backend = exact.in_format(kv_policy(file, outline, formats[index].name))
                few, many = (allocated(backend, tokens) for tokens in _MEASURED)
                sizes[index] = (many - few) / (_MEASURED[1] - _MEASURED[0])
                backend.close()
            exact.close()
    return whole, sizes
