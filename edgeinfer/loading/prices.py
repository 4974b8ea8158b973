"""What a format of keys and values costs a model: measured by the user on this machine, or by us on two models.

A price is the mean KL against float16, in nats a token, with every key and value rounded from the first token on, as
``edgeinfer eval kv`` measures it. A running cache keeps its first and its latest tokens exact, and costs less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from edgeinfer.hub.partial import read_json, write_json

_FILE = "kv-prices.json"
_KEPT = 100  # models
_LEAST = 500  # tokens: a mean over fewer says little


@dataclass(frozen=True, slots=True)
class Price:
    """KL, and what it was measured on: a model of ours, or so many tokens on a day here."""

    kl: float
    model: str = ""
    tokens: int = 0
    day: str = ""

    @property
    def where(self) -> str:
        """In a few words for a screen."""
        return f"measured on {self.model}" if self.model else f"measured here on {self.tokens:,} tokens, {self.day}"


@dataclass(frozen=True, slots=True)
class _Measured:
    model: str
    parameters: int
    kl: Mapping[str, float]


_OURS = (
    _Measured(
        "SmolLM2-135M",
        134_515_008,
        {
            "exact": 0.0, "k8v8": 0.00019, "k8v4": 0.0071, "k6v4": 0.0102, "k5v4": 0.0184, "k4v4": 0.0563,
            "k4v3": 0.0815, "k3v3": 0.243,
        },
    ),
)  # fmt: skip
"""On 4 × 512 tokens of English, questions, Python and Markdown, two cores of an AMD Zen 4."""


def prices(folder: Path, model: Path, parameters: int) -> dict[str, Price]:
    """By format: what was measured here on this file, and for other formats ours on the model nearest in size."""
    nearest = min(_OURS, key=lambda one: abs(math.log(max(1, parameters) / one.parameters)))
    ours = {name: Price(kl, nearest.model) for name, kl in nearest.kl.items()}
    return ours | _read(folder).get(_key(model), {})


def keep(folder: Path, model: Path, kl: Mapping[str, float], tokens: int) -> None:
    """Remembers prices of a model, beside those of its other formats, where they are of enough tokens.

    A folder that cannot be written is left alone.
    """
    if tokens < _LEAST:
        return
    known, today = _read(folder), date.today().isoformat()
    known[_key(model)] = known.pop(_key(model), {}) | {
        name: Price(price, tokens=tokens, day=today) for name, price in kl.items()
    }
    rows = {key: {name: asdict(price) for name, price in found.items()} for key, found in list(known.items())[-_KEPT:]}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _FILE, rows)


def _key(model: Path) -> str:
    """A file that was changed is another one."""
    status = model.stat()
    return f"{model.resolve()}:{status.st_size}:{status.st_mtime_ns}"


def _read(folder: Path) -> dict[str, dict[str, Price]]:
    """What is kept; rows that we did not write so are left out."""
    try:
        rows = read_json(folder / _FILE)
    except (OSError, ValueError):
        return {}
    return {
        key: {name: price for name, each in row.items() if (price := _price(each))}
        for key, row in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(row, dict)
    }


def _price(row: Any) -> Price | None:
    match row:
        case {"kl": float(kl), "tokens": int(tokens), "day": str(day)} if 0 <= kl < math.inf:
            return Price(kl, tokens=tokens, day=day)
    return None
