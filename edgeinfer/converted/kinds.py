"""What most particular settings are made from: the kinds of layers and the size of a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeinfer.converted.settings import Settings

Keys = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, in ``layer_types``."""


def head_size(settings: Settings) -> int:
    """Channels of a head. Raises UnsupportedModel where neither they nor what they follow from is said."""
    size = settings.whole("head_dim")
    found = size or (settings.whole("hidden_size") or 0) // settings.heads
    if not 2 <= found <= 1 << 14:
        raise settings.unsupported("head_dim", size, "2 to 16384")
    return found


def layers_of(settings: Settings, kinds: object, kind: str) -> list[bool]:
    """Which layers are of a kind; the others have full attention."""
    known = {kind, FULL}
    if not isinstance(kinds, list) or len(kinds) != settings.layers or not known.issuperset(map(str, kinds)):
        raise settings.unsupported("layer_types", kinds, f"{kind} or {FULL} for each layer")
    return [each == kind for each in kinds]
