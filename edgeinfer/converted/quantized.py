"""Which scheme a folder's weights are quantized in, as its config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeinfer.converted.compressed import compressed
from edgeinfer.converted.folder import Folder
from edgeinfer.converted.matrices import Reader
from edgeinfer.converted.schemes import awq, bitsandbytes, experts_alone, fp8, gptq, mlx
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import shown

SCHEMES: Mapping[str, Reader] = {
    "awq": awq,
    "gptq": gptq,
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
    "compressed-tensors": compressed,
    "mlx": mlx,
    "mxfp4": experts_alone,
}
"""By ``quant_method``; MLX writes its own key instead."""


def scheme_of(folder: Folder) -> tuple[Reader | None, Mapping[str, Any]]:
    """The reader of quantized weights and its settings; None without one. Raises UnsupportedModel."""
    config: Mapping[str, Any] = folder.config
    found = config.get("quantization_config") or config.get("quantization") or {}
    if not isinstance(found, dict):
        raise UnsupportedModel(
            f"{folder.path.name}: quantization_config: {found!r:.40}; expected an object", folder.path
        )
    method = found.get("quant_method", "mlx" if "group_size" in found and "bits" in found else None)
    if isinstance(config.get("quantization"), dict) and "quant_method" not in found:
        method = "mlx"
    if not found:
        return None, {}
    if not isinstance(method, str) or method not in SCHEMES:
        known = ", ".join(SCHEMES)
        message = f"{folder.path.name}: quantization_config: quant_method {shown(repr(method))}; supported: {known}"
        raise UnsupportedModel(message, folder.path, "quant_method", method)
    return SCHEMES[method], found
