"""What a batch would take, from the rows and the model's header: tokens, repeats, memory, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import numpy as np
import psutil

from edgeinfer.batch.job import Job
from edgeinfer.batch.ledger import by_prefix
from edgeinfer.batch.rows import Row
from edgeinfer.errors import BadRequest, TemplateFailed
from edgeinfer.generation.options import Options
from edgeinfer.generation.scheduler import MAX_OPEN, SHARED_PREFIX
from edgeinfer.llm import Outline
from edgeinfer.loading.fit import available_memory

_PROCESSES = 2  # the batch, and the model in one of its own; each about as large as this one without a model


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Counts of rows and tokens; bytes; seconds that no machine like this one can be faster than."""

    rows: int
    bad: int  # rows that cannot be answered, those that are too long left out
    repeated: int  # rows that ask the same as an earlier one
    too_long: int
    context: int
    prompt_tokens: int
    median: int  # of the prompts' lengths
    longest: int
    shared_tokens: int  # of prompts that begin like the one before; computed once
    answer_tokens: int  # at most
    memory: int
    free: int
    seconds: float


class _Count:
    def __init__(self, job: Job, header: Outline) -> None:
        self._job, self._header = job, header
        self.rows = self.bad = self.repeated = self.too_long = self.shared = self.answers = 0
        self.lengths: list[int] = []
        self._asked: set[bytes] = set()
        self._ids: set[str] = set()
        self._before: list[int] = []

    def add(self, row: Row) -> None:
        self.rows += 1
        if row.problem or row.id in self._ids:
            self.bad += 1
            return
        self._ids.add(row.id)
        options = {**self._job.options, **row.options}
        try:
            asked = Options.parse(options)
            ids = list(self._header.encode(row.prompt, **options))
        except (BadRequest, TemplateFailed):
            self.bad += 1
            return
        if len(ids) >= self._header.context:
            self.too_long += 1
            return
        self._count(row, ids, asked.params.max_tokens)

    def _count(self, row: Row, ids: list[int], most: int) -> None:
        asked = blake2b(
            repr((row.prompt, sorted(row.options.items()))).encode(errors="replace"), digest_size=8
        ).digest()
        self.repeated += asked in self._asked
        self._asked.add(asked)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids[:-1], self._before, strict=False)))
        self.shared += shared if shared >= SHARED_PREFIX else 0
        self._before = ids
        self.lengths.append(len(ids))
        self.answers += min(most, self._header.context - len(ids))


def plan(job: Job, header: Outline) -> BatchPlan:
    """Reads and tokenizes every row."""
    count = _Count(job, header)
    for row in by_prefix(job.rows()):
        count.add(row)
    prompts, needs = sum(count.lengths), header.needs
    longest = sorted(count.lengths, reverse=True)[:MAX_OPEN]
    mean_answer = count.answers // len(count.lengths) if count.lengths else 0
    return BatchPlan(
        rows=count.rows,
        bad=count.bad,
        repeated=count.repeated,
        too_long=count.too_long,
        context=header.context,
        prompt_tokens=prompts,
        median=sorted(count.lengths)[(len(count.lengths) - 1) // 2] if count.lengths else 0,
        longest=max(count.lengths, default=0),
        shared_tokens=count.shared,
        answer_tokens=count.answers,
        memory=needs.total(sum(longest) + mean_answer * len(longest)) + _PROCESSES * psutil.Process().memory_info().rss,
        free=available_memory(),
        seconds=_seconds(header, prompts - count.shared, count.answers),
    )


def _seconds(header: Outline, prompt_tokens: int, answer_tokens: int) -> float:
    """Two operations a weight for each token of a prompt, and all weights read once for each step of answers."""
    multiply, read = _operations_per_second(), _bytes_per_second()
    steps = answer_tokens / MAX_OPEN
    operations = 2 * header.parameters * (prompt_tokens + answer_tokens)
    return max(operations / multiply, steps * header.needs.weights / read)


def _operations_per_second() -> float:
    """What numpy's matrix product reaches here."""
    square = np.ones((768, 768), np.float32)
    return 2 * 768**3 / min(_timed(lambda: square @ square) for _ in range(3))


def _bytes_per_second() -> float:
    """What copying reaches here; half of it reads."""
    block = np.ones(1 << 26, np.uint8)
    return 2 * block.size / min(_timed(block.copy) for _ in range(3))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
