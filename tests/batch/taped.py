"""A model that repeats what a prompt puts between ``:`` and ``=``, on the tape; and batch files around it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgeinfer.backends import Choice
from edgeinfer.backends.tape import TapeBackend
from edgeinfer.batch import run_batch
from edgeinfer.generation.engine import Engine
from edgeinfer.llm import LLM
from edgeinfer.tokenizer.template import Encoded
from tests.generation.fakes import END, LETTERS, FakeTokenizer

SAY, DONE = LETTERS.index(b":"), LETTERS.index(b"=")


class Tokens(FakeTokenizer):
    bos_id = None
    add_bos = False

    def encode(self, text: str, special: bool = False, add_bos: bool = False) -> list[int]:
        return [self.pieces.index(character.encode()) for character in text]

    def lookalikes(self, text: str) -> list[str]:
        return []


class PlainTemplate:
    """All contents in a row. Its source tells which tools and thoughts it knows of."""

    def __init__(self, source: str = "") -> None:
        self._source = source
        self.given: dict[str, Any] = {}

    def source(self, tools: bool = False) -> str:
        return self._source

    def encode(self, messages: Sequence[Any], tokenizer: Tokens, tools: object = None, **variables: Any) -> Encoded:
        self.given = {"tools": tools, **variables}
        text = "".join(message["content"] for message in messages)
        return Encoded(tokenizer.encode(text), text)

    def drops(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass


def echo(history: Sequence[int]) -> int:
    tokens = list(history)
    start, end = tokens.index(SAY) + 1, tokens.index(DONE)
    wanted, made = tokens[start:end], len(tokens) - end - 1
    return wanted[made] if made < len(wanted) else END


def taped(
    tape: Callable[[Sequence[int]], int] = echo,
    backends: list[TapeBackend] | None = None,
    source: str = "",
    **options: Any,
) -> LLM:
    """A loaded model; ``backends`` receives its tape, ``source`` is its template's."""

    def open_backend() -> TapeBackend:
        backend = TapeBackend(tape, vocab_size=len(LETTERS), **options)
        if backends is not None:
            backends.append(backend)
        return backend

    tokenizer: Any = Tokens()
    template: Any = PlainTemplate(source)
    return LLM("tape", Choice("tape", "a test"), Engine(open_backend, tokenizer), tokenizer, template)


def write(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines; a string is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def texts(path: Path) -> dict[str, str]:
    """The answers by id; an id must not come twice."""
    rows = read(path)
    answers = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    assert len(answers) == len(rows)
    return answers


if __name__ == "__main__":  # the batch that a test kills
    with taped(delays=0.01) as llm:
        print("ready", flush=True)
        run_batch(sys.argv[1], sys.argv[2], llm, temperature=0)
