"""The adapter that is shipped beside some weights for drafts alone, in a folder of its own."""

from __future__ import annotations

import re

from edgeinfer.converted.folder import Folder, read_json
from edgeinfer.converted.matrices import Matrix, plain
from edgeinfer.errors import UnsupportedModel
from edgeinfer.formats.cursor import shown

DRAFT_ADAPTER = "linear_spec_lora"
_LORA = re.compile(
    r"base_model\.model\.(?:encoder|model)\.layers\.(\d{1,4})\.self_attn\.o_proj\.lora_([AB])\.weight", re.ASCII
)


def draft_adapter(folder: Folder) -> tuple[dict[str, Matrix], float | None]:
    """Its low-rank matrices, and what their product is multiplied by; nothing and None where there is none.

    Raises UnsupportedModel for settings or tensors that are not known, and CorruptFile.
    """
    place = folder.path / DRAFT_ADAPTER
    if not place.is_dir():
        return {}, None
    config, names = read_json(place / "adapter_config.json"), folder.add(place / "adapter_model.safetensors")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, (int, float)) or rank < 1 or alpha <= 0:
        raise UnsupportedModel(f"{place.name}: adapter_config.json: expected numbers for r and lora_alpha", place)
    found = {}
    for name in names:
        matched = _LORA.fullmatch(name)
        if matched is None:
            raise UnsupportedModel(f"{place.name}: tensor {shown(name)} is not one that a draft has", place, name)
        half = f"blk.{int(matched[1])}.attn_output.lora_{matched[2].lower()}.weight"
        found[half] = plain(folder, name)
    return found, float(alpha) / rank
