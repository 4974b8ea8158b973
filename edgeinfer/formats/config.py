"""The settings of a model, read strictly: a wrong type, a value out of range or one not supported stops the load.

Keys are relative to the architecture (``block_count`` reads ``llama.block_count``), but for those that start with a
root of their own (``general.``, ``tokenizer.``, ``split.``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, Literal, TypeVar, overload

from edgeinfer.errors import CorruptFile, UnsupportedModel
from edgeinfer.formats.cursor import MetadataValue, Scalar, shown
from edgeinfer.formats.gguf import GGUFFile

T = TypeVar("T", bool, int, float, str)
D = TypeVar("D")


class _Missing(Enum):
    REQUIRED = "required"


REQUIRED: Final = _Missing.REQUIRED
_Required = Literal[_Missing.REQUIRED]

LIMITS: Mapping[str, tuple[int, int]] = {
    "block_count": (1, 1024),
    "context_length": (1, 16 << 20),
    "embedding_length": (1, 1 << 20),
    "feed_forward_length": (1, 1 << 24),
    "vocab_size": (1, 2 << 20),
    "attention.head_count": (1, 1024),
    "attention.head_count_kv": (1, 1024),
    "attention.key_length": (1, 1 << 14),
    "attention.value_length": (1, 1 << 14),
    "attention.sliding_window": (0, 16 << 20),
    "rope.dimension_count": (1, 1 << 14),
    "expert_count": (0, 1024),
    "expert_used_count": (0, 1024),
    "expert_feed_forward_length": (1, 1 << 24),
    "expert_shared_feed_forward_length": (1, 1 << 24),
    "expert_shared_count": (0, 1024),
    "expert_group_count": (0, 1024),
    "expert_group_used_count": (0, 1024),
    "leading_dense_block_count": (0, 1024),
    "nextn_predict_layers": (0, 16),
    "attention.q_lora_rank": (1, 1 << 16),
    "attention.kv_lora_rank": (1, 1 << 16),
    "attention.key_length_mla": (1, 1 << 14),
    "attention.value_length_mla": (1, 1 << 14),
}
"""Smallest and largest value of the settings that sizes are computed from; ``read`` applies them by itself."""

_ROOTS = ("general.", "tokenizer.", "split.")
_KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


class Config:
    """The metadata of one model as its code wants it. Remembers which keys were read."""

    def __init__(
        self,
        metadata: Mapping[str, MetadataValue],
        architecture: str,
        path: Path,
        field_offset: Callable[[str], int | None],
    ) -> None:
        self.architecture = architecture
        self.context = 0  # tokens to make room for; 0: as many as the model was trained for
        self.path = path
        self._metadata = metadata
        self._field_offset = field_offset
        self._read: set[str] = set()

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Config:
        """Raises CorruptFile unless ``general.architecture`` is a string that can start keys."""
        config = cls(file.metadata, "", file.path, file.field_offset)
        architecture = config.read("general.architecture", str)
        if not architecture.isprintable() or not architecture:
            raise config.error("general.architecture", f"{shown(architecture)!r} is no name of an architecture")
        config.architecture = architecture
        return config

    def __contains__(self, key: str) -> bool:
        return self.full_key(key) in self._metadata

    def full_key(self, key: str) -> str:
        """The key as it stands in the file."""
        return key if key.startswith(_ROOTS) else f"{self.architecture}.{key}"

    @overload
    def read(
        self, key: str, kind: type[T], default: _Required = ..., *, minimum: float = ..., maximum: float = ...
    ) -> T: ...
    @overload
    def read(self, key: str, kind: type[T], default: D, *, minimum: float = ..., maximum: float = ...) -> T | D: ...
    def read(
        self,
        key: str,
        kind: type[T],
        default: D | _Required = REQUIRED,
        *,
        minimum: float = -math.inf,
        maximum: float = math.inf,
    ) -> T | D:
        """The value of a key, of exactly this kind, from ``minimum`` to ``maximum`` and within LIMITS.

        Raises CorruptFile where it is missing without a default, of another type, out of range or not finite.
        """
        value = self._value(key)
        if value is None:
            if default is REQUIRED:
                raise self.error(key, f"missing; expected {_KINDS[kind]}")
            return default
        if type(value) is not kind:
            raise self.error(key, f"{_repr(value)}; expected {_KINDS[kind]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(key, f"{value}; expected a finite number")
        if isinstance(value, (int, float)):
            low, high = LIMITS.get(key, (-math.inf, math.inf))
            low, high = max(low, minimum), min(high, maximum)
            if not low <= value <= high:
                raise self.error(key, f"{value}; expected {_interval(low, high)}")
        return value

    def pattern(self, key: str, layers: int, period: int) -> list[bool]:
        """Which layers are of a kind: a boolean for each, or all but the last of every ``period``, if it has none.

        Raises CorruptFile where there is something else.
        """
        value = self._value(key)
        if isinstance(value, list):
            if len(value) < layers or not all(isinstance(each, bool) for each in value):
                raise self.error(key, f"{_repr(value)}; expected true or false for each of {layers} layers")
            return [bool(each) for each in value[:layers]]
        period = self.read(key, int, period, minimum=1)
        return [(layer + 1) % period != 0 for layer in range(layers)]

    def per_layer(self, key: str, layers: int) -> list[int]:
        """A whole number for each layer, or one for all. Raises CorruptFile where there is something else."""
        value = self._value(key)
        if not isinstance(value, list):
            return [self.read(key, int)] * layers
        low, high = LIMITS[key]
        if len(value) < layers or not all(type(each) is int and low <= each <= high for each in value):
            raise self.error(key, f"{_repr(value)}; expected {_interval(low, high)} for each of {layers} layers")
        return [each for each in value[:layers] if isinstance(each, int)]

    def expect(self, key: str, *supported: Scalar | None) -> None:
        """Raises UnsupportedModel unless the key has one of these values; None among them lets it be missing.

        A number and a boolean never equal each other; 1 and 1.0 do.
        """
        value = self._value(key)
        if not any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in supported):
            raise self.unsupported(key, value, supported)

    def unread(self, ignored: Collection[str] = ()) -> list[str]:
        """Keys of the architecture that nobody asked for, without those in ``ignored`` (relative names)."""
        known = self._read | {self.full_key(key) for key in ignored}
        return [key for key in self._metadata if key.startswith(f"{self.architecture}.") and key not in known]

    def refuse_unread(self, ignored: Collection[str] = ()) -> None:
        """Raises UnsupportedModel for the first unread key: a setting that nobody reads changes the model silently."""
        for key in self.unread(ignored):
            raise self._unsupported(key, self._metadata[key], "; this setting is not supported")

    def error(self, key: str, problem: str) -> CorruptFile:
        """A CorruptFile that names the key and where it stands."""
        full = self.full_key(key)
        return CorruptFile(self.path, shown(full), self._offset(full), problem)

    def unsupported(
        self, key: str, value: MetadataValue | None, supported: Collection[Scalar | None]
    ) -> UnsupportedModel:
        """An UnsupportedModel that names the key, its value, where it stands and what would do."""
        choices = ", ".join(repr(item) for item in supported if item is not None) or "none"
        return self._unsupported(self.full_key(key), value, f"; supported: {choices}")

    def _unsupported(self, full: str, value: MetadataValue | None, advice: str) -> UnsupportedModel:
        offset = self._offset(full)
        place = f" at byte {offset}" if offset is not None else ""
        found = "missing" if value is None else _repr(value)
        return UnsupportedModel(f"{self.path.name}: {shown(full)}{place}: {found}{advice}", self.path, full, value)

    def _offset(self, full: str) -> int | None:
        return self._field_offset(full) if full in self._metadata else None

    def _value(self, key: str) -> MetadataValue | None:
        full = self.full_key(key)
        self._read.add(full)
        return self._metadata.get(full)


def _interval(low: float, high: float) -> str:
    if low == -math.inf:
        return f"at most {high}"
    return f"at least {low}" if high == math.inf else f"{low} to {high}"


def _repr(value: MetadataValue) -> str:
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return shown(repr(value))
