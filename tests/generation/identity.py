"""Greedy text with and without drafts, on many prompts, alone and in batches; ``python -m tests.generation.identity``
plays all 200 of them, the tests a few that a printed seed picks.

``... MODEL [KV [START STOP STEP]]``: with keys and values in that format, some of the prompts.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import Backend
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.speculation.speculation import Shared
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Finished, SamplingParams
from tests.generation.fakes import ids_of

PROMPTS, TOKENS, TOGETHER = 200, 256, 5
_WORDS = ("river", "stone", "market", "lantern", "garden", "winter", "letter", "engine", "harbour", "copper", "violin")
_OPENINGS = (
    "Once upon a time",
    "The history of",
    "def main():\n",
    "Dear Sir,",
    '{"name": "',
    "| a | b |\n|---|",
    "In 1969",
)


@dataclass
class Compared:
    """``different``: numbers of prompts whose text drafts changed."""

    different: list[int]
    drafted: int = 0
    accepted: int = 0


def prompt(number: int) -> str:
    """One of 200: lists to copy, code to go on with, tables, and openings of all kinds."""
    source = random.Random(number)
    opening = f"{source.choice(_OPENINGS)} {source.choice(_WORDS)}"
    if number % 4 == 3:
        return opening
    lines = "\n".join(
        f"{count}. the {source.choice(_WORDS)} and the {source.choice(_WORDS)}" for count in range(source.randint(2, 9))
    )
    return f"Copy this list:\n{lines}\n\nCopy:\n{lines}\n\nCopy:\n" if number % 4 else f"{lines}\n\n{opening}"


def long_prompt(number: int) -> str:
    """The same behind so much text that some of it lies in sealed pages before the first token is made."""
    lines = "\n".join(f"Note {count}: {prompt(number + count)}" for count in range(40, 50))
    return f"{lines}\n\n{prompt(number)}"


def compare(
    open_backend: Callable[[], Backend],
    tokenizer: Tokenizer,
    share: Callable[[Backend], Shared],
    numbers: Sequence[int],
    tokens: int = TOKENS,
    prompt: Callable[[int], str] = prompt,
) -> Compared:
    """Each prompt without drafts, with drafts alone, and with drafts in a batch of ``TOGETHER``."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    requests = [Request(tokenizer.encode(prompt(number), add_bos=tokenizer.add_bos), params) for number in numbers]
    found = Compared([])
    with Engine(open_backend, tokenizer, share) as engine:
        for start in range(0, len(requests), TOGETHER):
            part = requests[start : start + TOGETHER]
            plain = [ids_of(list(engine.submit(_without(request)))) for request in part]
            alone: list[Any] = [list(engine.submit(request)) for request in part]
            streams = [engine.submit(request) for request in part]
            batch: list[Any] = [list(stream) for stream in streams]
            for place, expected in enumerate(plain):
                for events in (alone[place], batch[place]):
                    finished = events[-1]
                    assert isinstance(finished, Finished)
                    found.drafted += finished.usage.drafted
                    found.accepted += finished.usage.accepted
                    if ids_of(events) != expected:
                        found.different.append(numbers[start + place])
    return found


def _without(request: Request) -> Request:
    return Request(request.ids, request.params, speculation="off")


if __name__ == "__main__":
    model, kv = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "exact"
    start, stop, step = map(int, sys.argv[3:6]) if len(sys.argv) > 5 else (0, PROMPTS, 1)
    with open_gguf(model) as file:
        words = Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)
    everything = range(start, stop, step)
    for first in range(0, len(everything), TOGETHER):
        part = everything[first : first + TOGETHER]
        result = compare(
            lambda: MLXBackend.load(model, context=4096, kv=kv),
            words,
            lambda backend: Shared(backend.info),
            part,
            prompt=prompt if kv == "exact" else long_prompt,
        )
        print(model.name, kv, list(part), result, flush=True)
