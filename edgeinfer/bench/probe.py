"""How long an engine takes to load, and what memory it takes: measured once in a process, before anything else."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.bench.busy import Guard
from edgeinfer.bench.plan import PACING_TOKENS, PROMPT

if TYPE_CHECKING:
    from edgeinfer.bench.subject import Subject
    from edgeinfer.bench.worker import Job

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Probe:
    """Seconds, and bytes beyond those of Python itself.

    imports: of the engine's code. weights: None where the engine reads the tokenizer with them. load: weights and
    tokenizer, None where there is none. prompted: after a prompt of 512 tokens, or as many as the context holds; None
    where that would take longer than the plan's patience. peak: the most at any time. foreign: cores that others kept
    busy while it loaded.
    """

    imports: float
    weights: float | None
    load: float | None
    loaded: int
    prompted: int | None
    peak: int
    foreign: float | None


def probe(job: Job) -> Probe:
    """Imports, loads and prompts the engine of a job in this process, which must not have done so before."""
    from edgeinfer.bench.worker import ENGINES

    guard, python = Guard(), resident_bytes()
    guard.start()
    started = time.perf_counter()
    module = import_module(ENGINES[job.engine])
    module.prepare()
    imported = time.perf_counter()
    subject = module.load(job)
    seconds = time.perf_counter() - imported
    foreign, loaded = guard.stop(), resident_bytes()
    prompted = resident_bytes() if _prompt(subject, job) else None
    peak = peak_bytes()
    included = getattr(module, "TOKENIZER_INCLUDED", False)
    tokenizer = 0.0 if included else _tokenizer_seconds(module, job.model)
    return Probe(
        imports=imported - started,
        weights=None if included else seconds,
        load=None if tokenizer is None else seconds + tokenizer,
        loaded=loaded - python,
        prompted=None if prompted is None else prompted - python,
        peak=peak - python,
        foreign=foreign,
    )


def _prompt(subject: Subject, job: Job) -> bool:
    """Computes a prompt, if a short one says that it will not take too long."""
    length = min(PROMPT, job.context)
    first = min(PACING_TOKENS, length)
    subject.prefill(first)
    if subject.prefill(first) / first * length > job.patience:
        return False
    subject.prefill(length)
    return True


def _tokenizer_seconds(module: object, path: Path) -> float | None:
    load_tokenizer = getattr(module, "load_tokenizer", None)
    if load_tokenizer is None:
        return None
    started = time.perf_counter()
    load_tokenizer(path)
    return time.perf_counter() - started


def resident_bytes() -> int:
    """Memory that this process holds now."""
    try:
        return _status("VmRSS")
    except OSError:
        import psutil

        return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most memory that this process held at once."""
    try:
        return _status("VmHWM")  # ru_maxrss would count the process that started this one
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in {_STATUS}")
