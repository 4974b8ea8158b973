"""What a batch is asked to do, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from edgeinfer.batch.rows import Row, parse
from edgeinfer.batch.source import count_rows, read_rows


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a run has come. Rows of earlier runs count as done; rates are of this run alone."""

    done: int
    failed: int
    total: int | None  # rows of the input; None where it cannot be read twice
    tokens: int  # made by this run
    tokens_per_second: float
    seconds: float
    seconds_left: float | None
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a run came to. ``done`` and ``failed`` include earlier runs'; ``resumed`` counts those of ``done``."""

    done: int
    failed: int
    resumed: int
    tokens: int
    seconds: float
    stopped: bool  # by on_error="stop"


@dataclass(frozen=True, slots=True)
class Job:
    """What to do; the same job given twice goes on where the first run ended."""

    input: Path
    output: Path
    options: Mapping[str, Any]
    raw: bool
    ordered: bool
    on_error: Literal["skip", "stop"]
    max_rows: int | None
    receipts: bool = False

    @property
    def errors(self) -> Path:
        """Where failed rows go: ``out.errors.jsonl`` beside ``out.jsonl``."""
        return self.output.with_name(f"{self.output.stem}.errors.jsonl")

    def rows(self) -> Iterator[Row]:
        """The rows of the input, bad ones included."""
        return (parse(raw, self.raw) for raw in islice(read_rows(self.input), self.max_rows))

    def count(self) -> int | None:
        rows = count_rows(self.input)
        return rows if rows is None or self.max_rows is None else min(rows, self.max_rows)

    def options_for(self, row: Row) -> dict[str, Any]:
        """A row's own options on top of the batch's; one without a seed gets its row's."""
        options = {**self.options, **row.options}
        if options.get("seed", getattr(options.get("params"), "seed", None)) is None:
            options["seed"] = row.seed
        return options

    def fingerprint(self, model: str) -> str:
        """What makes two runs one job: the model and the options that rows start from."""
        text = json.dumps([model, self.raw, sorted(self.options.items())], default=str)
        return f"edgeinfer-{blake2b(text.encode(), digest_size=8).hexdigest()}"
