"""What drafts are worth with one model on this machine: the cost of verifying rows, and task sets with each drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeinfer.backends import choose
from edgeinfer.backends.base import Backend
from edgeinfer.bench.machine import Machine, this_machine
from edgeinfer.bench.seam import SeamSubject
from edgeinfer.bench.statistics import Spread, ratio
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.speculation.drafter import Drafter, Text
from edgeinfer.speculation.speculation import Shared, Source
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Finished, SamplingParams

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DEPTH = 256  # tokens before the verified rows
PLAIN = "off"
DRAFTERS = ("suffix", "suffix + store")
"""From this text alone; and from earlier answers as well, which from the second round on hold the same one."""

_ITEMS = "".join(
    f"{number}. The {thing} costs {7 * number} dollars in the {place} shop.\n"
    for number, (thing, place) in enumerate(
        [("lamp", "corner"), ("chair", "village"), ("table", "city"), ("mirror", "station"), ("carpet", "harbour")], 1
    )
)
_CODE = '''def area(width, height):
    """Square metres of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("a length is negative")
    return width * height


def volume(width, height, depth):
    """Cubic metres of a box."""
    return area(width, height) * depth
'''
_ROWS = "".join(
    f'{name}, {age}, {town}\n{{"name": "{name}", "age": {age}, "town": "{town}"}}\n'
    for name, age, town in [
        ("Ann Lee", 31, "Oslo"),
        ("Bob Ray", 47, "Bonn"),
        ("Cy Dunn", 25, "Lyon"),
        ("Di Fox", 62, "Bari"),
    ]
)
TASKS = {
    "copy a list": f"The list:\n{_ITEMS}\nThe list again:\n{_ITEMS}\nThe list again:\n",
    "copy code": f"```python\n{_CODE}```\n\nThe file again:\n```python\n{_CODE}```\n\nThe file again:\n```python\n",
    "rows as JSON": f"{_ROWS}Ed Poe, 38, Graz\n",
    "prose": "Once upon a time, in a small village by the sea, there lived",
}
"""Texts that even a small model goes on with as one would expect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task with a drafter. speedup: of decoding, against plain decoding in the same round."""

    task: str
    drafter: str
    speedup: Spread
    tokens_per_step: float  # of the last round, as are the figures below
    drafted: int
    accepted: int
    same: bool  # as the text without drafts, in every round
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured. ``verify``: seconds of a step by rows, at ``DEPTH``."""

    model: str
    backend: str
    machine: Machine
    rounds: int
    verify: dict[int, Spread]
    outcomes: list[Outcome]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench_speculation(
    path: Path,
    *,
    name: str = "",
    backend: str = "auto",
    threads: int = 0,
    rounds: int = 5,
    tokens: int = 192,
    folder: Path | None = None,
    on_step: Callable[[str], None] = lambda doing: None,
) -> Measured:
    """Measures a model, in turn with and without drafts. What is learned of costs is kept in ``folder``.

    Raises ModelError, BackendUnavailable, MemoryLimit, or BadRequest for an unknown backend.
    """
    with open_gguf(path) as file:
        choice = choose(file, backend)
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)
    session = _Session(folder)
    with Engine(lambda: choice.load(path, 2048, threads), tokenizer, session.share) as engine:
        on_step("verifying rows")
        verify = engine.call(lambda backend: session.curve(backend, rounds))
        outcomes: list[Outcome] = []
        for task, prompt in TASKS.items():
            on_step(task)
            outcomes += session.play(engine, task, tokenizer.encode(prompt, add_bos=tokenizer.add_bos), rounds, tokens)
        info = engine.info
    return Measured(name or info.name, f"{info.backend} ({info.device})", this_machine(), rounds, verify, outcomes)


class _Session:
    """One loaded model, and which drafter its requests have."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._drafter = DRAFTERS[0]

    def share(self, backend: Backend) -> Shared:
        self._shared = Shared(backend.info, self._folder, more={"suffix": Source(self._make)})
        return self._shared

    def curve(self, backend: Backend, rounds: int) -> dict[int, Spread]:
        """On the engine's thread. The controller learns what is measured."""
        subject = SeamSubject(backend)
        subject.hold(DEPTH)
        for rows in ROWS:
            subject.verify(rows)
        samples: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for _ in range(max(rounds, 3)):
            for rows in ROWS:
                samples[rows].append(subject.verify(rows))
        found = {rows: Spread.of(seconds) for rows, seconds in samples.items()}
        for costs in self._shared.costs.values():
            for number in range(max(rounds, 3)):
                costs.learn_plain(1, DEPTH, samples[1][number])
            for rows in ROWS[1:]:
                costs.learn_verify(rows, 1, DEPTH, found[rows].median)
        return found

    def play(self, engine: Engine, task: str, prompt: Sequence[int], rounds: int, tokens: int) -> list[Outcome]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        rates: dict[str, dict[int, float]] = {name: {} for name in (PLAIN, *DRAFTERS)}
        last: dict[str, Finished] = {}
        texts: dict[str, set[tuple[int, ...]]] = {name: set() for name in rates}
        for number in range(rounds):
            for name in rates:
                self._drafter = name
                *events, finished = engine.submit(
                    Request(prompt, params, speculation=PLAIN if name == PLAIN else "suffix")
                )
                assert isinstance(finished, Finished)
                rates[name][number], last[name] = finished.timings.decode_rate, finished
                texts[name].add(tuple(token for event in events for token in getattr(event, "ids", ())))
        outcomes = []
        for name in DRAFTERS:
            speedup = ratio(rates[name], rates[PLAIN])
            assert speedup is not None
            usage, told = last[name].usage, last[name].speculation
            per_step = told.tokens / told.steps if told.steps else 1.0
            same = texts[name] == texts[PLAIN] and len(texts[PLAIN]) == 1
            outcomes.append(Outcome(task, name, speedup, per_step, usage.drafted, usage.accepted, same, told.why))
        return outcomes

    def _make(self, text: Text) -> Drafter:
        store = self._shared.store.snapshot() if self._drafter == DRAFTERS[1] else None
        return SuffixDrafter(text.prompt, Survival.prior(), store)
