"""Strings that tell tokenizers apart: a list by hand (``strings.json``), and any number from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

SEED = 20261130

_TEXTS: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
WORDS, SPACES, HAND = _TEXTS["words"], _TEXTS["spaces"], _TEXTS["hand"]
_BLOCKS = (
    (0, 0x7F), (0x80, 0x24F), (0x250, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0xD7FF), (0xE000, 0xFFFD),
    (0x10000, 0x1FFFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF),
)  # fmt: skip


def generated(count: int, seed: int = SEED, extra: Sequence[str] = ()) -> Iterator[str]:
    """Mixed texts of 1 to about 30 parts. ``extra`` texts (special tokens, say) are strewn in."""
    source = random.Random(seed)
    for _ in range(count):
        yield "".join(_part(source, extra) for _ in range(source.choice((1, 2, 3, 5, 8, 13, 30))))


def _part(source: random.Random, extra: Sequence[str]) -> str:
    roll = source.random()
    if extra and roll < 0.08:
        return source.choice(extra)
    if roll < 0.5:
        return source.choice(WORDS) + source.choice(("", " ", " ", "\n"))
    if roll < 0.65:
        return source.choice(SPACES)
    if roll < 0.72:
        return "".join(source.choice("0123456789") for _ in range(source.randint(1, 12)))
    if roll < 0.77:
        return source.choice(WORDS)[:1] * source.randint(2, 20)
    if roll < 0.87:
        return "".join(chr(source.randint(32, 126)) for _ in range(source.randint(1, 10)))
    return "".join(_character(source) for _ in range(source.randint(1, 6)))


def _character(source: random.Random) -> str:
    return chr(source.randint(*source.choice(_BLOCKS)))
