"""Prompts with the texts that a perfect model would answer them with, made of stored modules and sentences.

The stored ones are parts of this repository as it once was: a change of today's files must not move the figures.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

TEXTS = Path(__file__).with_name("texts")
Task = tuple[str, str]
"""Prompt and answer."""


@cache
def sources() -> tuple[str, ...]:
    """Modules of a size that a person would ask to have rewritten."""
    return tuple((TEXTS / "sources.txt").read_text(encoding="utf-8").split("\f\n"))


@cache
def paragraphs() -> tuple[str, ...]:
    """Sentences about many different things."""
    return tuple((TEXTS / "paragraphs.txt").read_text(encoding="utf-8").splitlines())


def rewrite(random_: random.Random) -> Task:
    """A whole file with a name changed and a few lines more and less."""
    text, other = random_.sample(sources(), 2)
    return f"Rewrite this file:\n```\n{text}```\n", f"```\n{_edited(text, other, random_)}```\n"


def edits(random_: random.Random) -> Task:
    """Blocks that name the lines to replace and what replaces them."""
    text, other = random_.sample(sources(), 2)
    lines = text.splitlines(keepends=True)
    blocks = []
    for _ in range(5):
        start = random_.randrange(len(lines) - 8)
        part = "".join(lines[start : start + random_.randint(3, 8)])
        blocks.append(f"<<<<<<< SEARCH\n{part}=======\n{_edited(part, other, random_, 1)}>>>>>>> REPLACE\n")
    return f"Change this file by SEARCH and REPLACE blocks:\n```\n{text}```\n", "".join(blocks)


def extraction(random_: random.Random) -> Task:
    """Rows of a table as JSON objects."""
    names = ("order", "customer", "city", "product", "quantity", "price")
    words = sorted({word.lower() for text in paragraphs() for word in re.findall(r"[A-Za-z]{4,9}", text)})
    rows = [
        {
            "order": f"{random_.choice('ABC')}-{random_.randrange(10_000):04}",
            "customer": " ".join(random_.sample(words, 2)).title(),
            "city": random_.choice(words).title(),
            "product": " ".join(random_.sample(words, random_.randint(1, 3))),
            "quantity": random_.randint(1, 40),
            "price": round(random_.uniform(1, 900), 2),
        }
        for _ in range(14)
    ]
    table = "\n".join(
        ["| " + " | ".join(names) + " |", *("| " + " | ".join(map(str, r.values())) + " |" for r in rows)]
    )
    return f"Extract all orders as JSON:\n\n{table}\n\n", json.dumps(rows, indent=2)


def quoting(random_: random.Random) -> Task:
    """An answer of which about half is quoted from the documents before it."""
    chosen = random_.sample(paragraphs(), 22)
    documents, fresh = chosen[:14], chosen[14:]
    answer = []
    for text, quoted in zip(fresh, random_.sample(documents, len(fresh)), strict=True):
        answer.append(f'{text} As the document says: "{quoted[: random_.randint(60, 240)]}".')
    return "Answer from these documents:\n\n" + "\n\n".join(documents) + "\n\n", "\n\n".join(answer)


def prose(random_: random.Random) -> Task:
    """Text that quotes nothing."""
    return "Write about software:\n\n", "\n\n".join(random_.sample(paragraphs(), 12))


def _edited(text: str, other: str, random_: random.Random, changes: int = 3) -> str:
    names = sorted(set(re.findall(r"\b[a-z_]{5,}\b", text)))
    if names:
        text = re.sub(rf"\b{random_.choice(names)}\b", "renamed_value", text)
    lines, spare = text.splitlines(keepends=True), other.splitlines(keepends=True)
    for _ in range(changes):
        place = random_.randrange(len(lines))
        lines[place : place + random_.randint(0, 2)] = random_.sample(spare, random_.randint(1, 2))
    return "".join(lines)


SETS: dict[str, Callable[[random.Random], Task]] = {
    "rewrite": rewrite,
    "edits": edits,
    "extraction": extraction,
    "quoting": quoting,
    "prose": prose,
}
