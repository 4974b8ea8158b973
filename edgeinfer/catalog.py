"""Models by short name: the rows of ``catalog.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that may be asked for by name; ``quant``, ``size`` (bytes) and ``sha256`` where they are pinned.

    ``about`` is a size to the nearest per cent, for what is not pinned: enough to say what fits before anyone asks.
    """

    name: str
    source: str  # as ``pull`` takes it
    title: str
    license: str
    quant: str = ""
    size: int = 0
    sha256: str = ""
    about: int = 0  # bytes

    @property
    def bytes(self) -> int:
        """Of its weights, exactly where they are pinned."""
        return self.size or self.about


@cache
def catalogue() -> Mapping[str, Entry]:
    """Every entry by name, in the order of the file."""
    rows = tomllib.loads(files("edgeinfer").joinpath("catalog.toml").read_text(encoding="utf-8"))
    return {name: Entry(name, **row) for name, row in rows.items()}


def largest_within(size: int) -> Entry | None:
    """The largest model of the catalogue whose weights take no more than ``size`` bytes."""
    fitting = [entry for entry in catalogue().values() if 0 < entry.bytes <= size]
    return max(fitting, key=lambda entry: entry.bytes, default=None)
