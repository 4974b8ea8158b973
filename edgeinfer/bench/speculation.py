"""What drafts are worth with one model on this machine: the cost of verifying rows, and task sets with each drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from edgeinfer.backends import choose, open_draft
from edgeinfer.backends.base import Backend
from edgeinfer.bench.machine import Machine, this_machine
from edgeinfer.bench.seam import SeamSubject
from edgeinfer.bench.statistics import Spread, ratio
from edgeinfer.bench.tasks import SCHEMA, SCHEMA_TASK, TASKS
from edgeinfer.bench.ties import NEAR_TIE, first_difference, margin_at
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.request import Request
from edgeinfer.generation.structured import compiled
from edgeinfer.speculation.drafter import Drafter, Text
from edgeinfer.speculation.sources import diffusion, layer_skip, mtp
from edgeinfer.speculation.sources import draft_model as draft_model_of
from edgeinfer.speculation.speculation import Shared, Source
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival
from edgeinfer.tokenizer.vocabulary import Tokenizer
from edgeinfer.types import Event, Finished, ReasoningDelta, SamplingParams, TextDelta

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DEPTH = 256  # tokens before the verified rows
PLAIN = "off"
SUFFIX, STORE = "suffix", "suffix + store"
"""From this text alone; and from earlier answers as well, which from the second round on hold the same one."""
WINDOW = 512
"""Tokens in a row over which no drafter may be slower than plain decoding."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task with a drafter. speedup: of decoding, against plain decoding in the same round."""

    task: str
    drafter: str
    speedup: Spread
    worst: float  # the least speedup over any WINDOW tokens in a row, the median of all rounds
    tokens_per_step: float  # of the last round, as are the figures below
    drafted: int
    accepted: int
    same: bool  # as the text without drafts, in every round
    different: int  # rounds with another text
    near_ties: int  # of these, where the tokens of the first difference are as likely as each other within NEAR_TIE
    margin: float  # of log-probability, between those tokens: the largest
    controller: float  # share of the time that choosing drafts took
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
    tokens: int = 256,
    folder: Path | None = None,
    draft_model: Path | None = None,
    on_step: Callable[[str], None] = lambda doing: None,
) -> Measured:
    """Measures a model, in turn with and without drafts. What is learned of costs is kept in ``folder``.

    ``draft_model``: a second model to compare, whose vocabulary is the same.

    Raises ModelError, BackendUnavailable, MemoryLimit, or BadRequest for an unknown backend.
    """
    with open_gguf(path) as file:
        choice = choose(file, backend)
        tokenizer = Tokenizer.from_gguf(file.metadata, file.path, file.field_offset)
    session = _Session(folder)
    if draft_model is not None:
        with open_gguf(draft_model) as file:
            session.open_draft = open_draft(threads, str(draft_model), choose(file, backend).name)
    with Engine(lambda: choice.load(path, 2048, threads), tokenizer, session.share) as engine:
        on_step("verifying rows")
        verify = engine.call(lambda backend: session.curve(backend, rounds))
        outcomes: list[Outcome] = []
        for task, prompt in TASKS.items():
            on_step(task)
            ids = tokenizer.encode(prompt, add_bos=tokenizer.add_bos)
            outcomes += session.play(engine, task, ids, rounds, tokens, session.drafters)
        on_step(SCHEMA_TASK)
        ids = tokenizer.encode(TASKS["rows as JSON"], add_bos=tokenizer.add_bos)
        outcomes += session.play(engine, SCHEMA_TASK, ids, rounds, tokens, (SUFFIX, "structured"), schema=SCHEMA)
        info = engine.info
    return Measured(name or info.name, f"{info.backend} ({info.device})", this_machine(), rounds, verify, outcomes)


def worst_window(plain: Mapping[int, Sequence[float]], drafted: Mapping[int, Sequence[float]]) -> float:
    """The least speedup over any WINDOW tokens in a row; of all where there are fewer.

    When each token came, in seconds, by round. Each window is compared with plain decoding of the same round, and
    counts with the median of its rounds.
    """
    count = min(map(len, (*plain.values(), *drafted.values())))
    width = min(WINDOW, count - 1)
    if width < 1:
        return 1.0
    rounds = []
    for number, times in drafted.items():
        mine, its = (np.asarray(each[:count]) for each in (times, plain[number]))
        took = np.maximum(mine[width:] - mine[:-width], 1e-9)
        rounds.append((its[width:] - its[:-width]) / took)
    return float(np.median(rounds, axis=0).min())


class _Session:
    """One loaded model, and which drafter its requests have."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._drafter = SUFFIX
        self.open_draft: Callable[[], Backend] | None = None
        self.drafters: tuple[str, ...] = ()

    def share(self, backend: Backend) -> Shared:
        more = mtp(backend) | diffusion(backend) | layer_skip(backend)
        if self.open_draft is not None:
            more |= draft_model_of(self.open_draft(), backend)
        self.drafters = (SUFFIX, STORE, *more)
        self._shared = Shared(backend.info, self._folder, more={"suffix": Source(self._make), **more})
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

    def play(
        self,
        engine: Engine,
        task: str,
        prompt: Sequence[int],
        rounds: int,
        tokens: int,
        drafters: Sequence[str],
        schema: Mapping[str, Any] | None = None,
    ) -> list[Outcome]:
        """The task in turn without drafts and with each drafter."""
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=schema is None)
        grammar = compiled({"schema": schema}) if schema else ""
        answers: dict[str, dict[int, _Answer]] = {name: {} for name in (PLAIN, *drafters)}
        for number in range(rounds):
            for name in answers:
                self._drafter = name
                wanted = SUFFIX if name == STORE else name
                answers[name][number] = _Answer.of(engine, Request(prompt, params, speculation=wanted, grammar=grammar))
        plain = answers.pop(PLAIN)
        outcomes = []
        for name in answers:
            pairs = [(plain[number], answers[name][number]) for number in range(rounds)]
            margins = _margins(engine, prompt, pairs)
            outcomes.append(_outcome(task, name, answers[name], plain, margins))
        return outcomes

    def _make(self, text: Text) -> Drafter:
        store = self._shared.store.snapshot() if self._drafter == STORE else None
        return SuffixDrafter(text.prompt, Survival.prior(), store)


def _margins(engine: Engine, prompt: Sequence[int], pairs: Sequence[tuple[_Answer, _Answer]]) -> list[float]:
    """By how much the first difference of each pair was decided, in log-probability. Same texts give none."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
    margins = []
    for plain, drafted in pairs:
        place = first_difference(plain.ids, drafted.ids)
        if place is not None and place < min(len(plain.ids), len(drafted.ids)):
            asked = _Answer.of(engine, Request([*prompt, *plain.ids[:place]], params, speculation=PLAIN))
            margins.append(margin_at(asked.top, plain.ids[place], drafted.ids[place]))
    return margins


def _outcome(
    task: str, name: str, answers: Mapping[int, _Answer], plain: Mapping[int, _Answer], margins: Sequence[float]
) -> Outcome:
    rates, usual = ({number: each.rate for number, each in of.items()} for of in (answers, plain))
    speedup = ratio(rates, usual)
    assert speedup is not None
    last = answers[max(answers)].finished
    told = last.speculation
    different = sum(answers[number].ids != plain[number].ids for number in answers)
    return Outcome(
        task=task,
        drafter=name,
        speedup=speedup,
        worst=worst_window(*({number: each.times for number, each in of.items()} for of in (plain, answers))),
        tokens_per_step=told.tokens / told.steps if told.steps else 1.0,
        drafted=last.usage.drafted,
        accepted=last.usage.accepted,
        same=not different,
        different=different,
        near_ties=sum(margin <= NEAR_TIE for margin in margins),
        margin=max(margins, default=0.0),
        controller=told.controller,
        why=told.why,
    )


class _Answer:
    """Takes the events of a request on the engine's thread, and when each token came."""

    finished: Finished

    def __init__(self) -> None:
        self.submitted = time.perf_counter()
        self.cancelled = False
        self.ready = True
        self.ids: tuple[int, ...] = ()
        self.times: list[float] = []
        self.top: tuple[tuple[int, float], ...] = ()  # the most likely tokens of the last place, where asked for
        self._end: Future[Finished] = Future()

    @classmethod
    def of(cls, engine: Engine, request: Request) -> Self:
        """The whole answer."""
        answer = cls()
        engine.serve(request, answer)
        answer.finished = answer._end.result()
        return answer

    @property
    def rate(self) -> float:
        """Tokens a second after the first one."""
        return self.finished.timings.decode_rate

    def put(self, event: Event) -> None:
        if isinstance(event, Finished):
            if event.finish_reason != "error":
                self._end.set_result(event)
        elif isinstance(event, (TextDelta, ReasoningDelta)):
            self.ids += event.ids
            self.times += [time.perf_counter()] * len(event.ids)
            if event.logprobs:
                self.top = tuple((token, logprob) for token, _, logprob in event.logprobs[-1].top)

    def fail(self, error: BaseException) -> None:
        self._end.set_exception(error)
