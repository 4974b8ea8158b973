"""What all requests of a loaded model share: costs, chances, the store of outputs, and the choice in each step."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import ModelInfo
from edgeinfer.speculation.certainty import Learned, Price
from edgeinfer.speculation.controller import MARGIN
from edgeinfer.speculation.costs import Costs, Terms
from edgeinfer.speculation.drafter import Drafter, Text
from edgeinfer.speculation.pilot import TOGETHER, Pilot
from edgeinfer.speculation.seat import Seat, Stopwatch
from edgeinfer.speculation.step import Candidate, Now, cost, settle_drafts
from edgeinfer.speculation.store import OutputStore, replace_file
from edgeinfer.speculation.structured import StructuredDrafter
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival
from edgeinfer.types import AUTO

_FORMAT = 2
_FIRST_BUBBLE = 0.15  # plain steps that leaving the pipeline costs, before it was measured
_PACE = 0.2
_HICCUP = 1.5  # times the usual cost, beyond which a step was held up by something else
_WARM = 0.7  # the temperature up to which chances are counted together
_PACKAGES = {"mlx": "mlx", "llama.cpp": "llama-cpp-python"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where drafters of one name come from. ``price``: in plain steps, the first token of a draft and each more, of
    those that compute. ``automatic``: at work when nobody asks for a drafter by name."""

    make: Callable[[Text], Drafter | None]
    price: tuple[float, float] | None = None
    automatic: bool = True
    close: Callable[[], object] = lambda: None
    confidence: Mapping[bool, Learned] = field(default_factory=dict)
    """What was learned of it, greedy or not; kept like costs."""


class Shared:
    """One for a loaded model. ``folder``: where measurements are kept; ``keep_outputs``: outputs too, on disk.

    ``more``: drafters beside those that every model has, or in their place.
    """

    def __init__(
        self,
        info: ModelInfo,
        folder: Path | None = None,
        keep_outputs: bool = False,
        more: Mapping[str, Source] | None = None,
    ) -> None:
        self._info = info
        self.sources = {"suffix": Source(self._suffix), "structured": Source(_structured), **(more or {})}
        self._prices = {name: Price(*source.price) for name, source in self.sources.items() if source.price}
        self._file = folder / f"{machine_key(info)}.json" if folder else None
        self.store = OutputStore(folder / f"{model_key(info)}.outputs" if folder and keep_outputs else None)
        self.costs = {greedy: Costs.prior(info.backend, info.device) for greedy in (True, False)}
        self._survival = [Survival.prior() for _ in range(3)]
        self._bubble = _FIRST_BUBBLE
        self._terms: Terms | None = None
        self._watch = Stopwatch()
        if self._file:
            self._restore(self._file)

    def pilot(self, text: Text, wanted: str = AUTO) -> Pilot:
        """For one request. ``wanted``: a drafter by name, or all that are at work by themselves. The request's output
        is remembered when it is closed."""
        seats = []
        length = len(text.prompt)
        for name, source in self.sources.items():
            if (source.automatic if wanted == AUTO else name == wanted) and (drafter := source.make(text)):
                seats.append(Seat(drafter, self._prices.get(name)))
        lead = tuple(text.prompt[-3:])
        pilot: Pilot

        def on_close(output: Sequence[int]) -> None:
            self._learn_waiting(pilot, length + len(output))
            self.store.add(lead, output)

        greedy = text.temperature == 0
        pilot = Pilot(seats, self._info.vocab_size, greedy, on_close, text.grammar, self._watch)
        return pilot

    def choose(self, candidates: Sequence[Candidate], depth: int) -> None:
        """Gives each pilot its draft for a step of all ``candidates``, whose texts are ``depth`` tokens long."""
        sequences = len(candidates)
        for each in candidates:
            pilot = each.pilot
            if pilot is not None and (pilot.hope or (pilot.terms and pilot.terms.sequences != sequences)):
                break
        else:
            return
        started = self._watch.start() if self._watch.running else 0.0
        pilots = [each.pilot for each in candidates if each.pilot is not None]
        costs = self.costs[pilots[0].greedy]
        now = Now(self._terms_at(costs, sequences, depth), costs.plain(sequences, depth) or 0.0)
        settle_drafts(candidates, now)
        if self._watch.running:
            took = self._watch.stop(started) / len(pilots)
            for pilot in pilots:
                pilot.thought += took - pilot.drafting

    def settle(
        self, candidates: Sequence[Candidate], rows: int, depth: int, seconds: float, entered: bool, steady: bool
    ) -> None:
        """A step of ``rows`` tokens took ``seconds``. ``steady``: a plain one, after a plain one; ``entered``: it only
        started the pipeline again."""
        started = self._watch.start() if self._watch.running else 0.0
        pilots = [each.pilot for each in candidates if each.pilot is not None]
        if not pilots:
            return
        if steady and len(candidates) == 1:
            self._settle_plain(pilots[0], depth, seconds)
        else:
            self._settle(pilots, len(candidates), rows, depth, seconds, entered, steady)
        if self._watch.running:
            took = self._watch.stop(started) / len(pilots)
            for pilot in pilots:
                pilot.thought += took
        self._watch.next_step()

    def _settle_plain(self, pilot: Pilot, depth: int, seconds: float) -> None:
        pilot.waiting.append(seconds)
        if pilot.terms is None or len(pilot.waiting) >= TOGETHER:
            self._learn_waiting(pilot, depth)

    def _learn_waiting(self, pilot: Pilot, depth: int) -> None:
        """From plain steps of a request alone, which gave a token each."""
        waiting, costs = pilot.waiting, self.costs[pilot.greedy]
        if not waiting:
            return
        plain = None
        for seconds in waiting:
            plain = costs.learn_plain(1, depth, seconds)
        pilot.timed(sum(waiting), len(waiting), plain)
        pilot.set_terms(self._terms_at(costs, 1, depth) if plain else None)
        waiting.clear()

    def _settle(
        self,
        pilots: Sequence[Pilot],
        sequences: int,
        rows: int,
        depth: int,
        seconds: float,
        entered: bool,
        steady: bool,
    ) -> None:
        for pilot in pilots:
            self._learn_waiting(pilot, depth)
        costs, spent = self.costs[pilots[0].greedy], sum(pilot.spent for pilot in pilots)
        if steady and not spent:
            plain = costs.learn_plain(sequences, depth, seconds)
        elif plain := costs.plain(sequences, depth):
            drafting = [pilot for pilot in pilots if pilot.draft]
            if drafting:
                costs.learn_verify(rows, sequences, depth, seconds - spent)
            elif entered:
                self._bubble += _PACE * (min(seconds / plain, 1.0) - self._bubble)
            usual = (cost(costs.ratios(depth), rows, sequences) if drafting else 1.0) + spent / plain
            took = sequences * min(seconds / plain, _HICCUP * usual)
            _settle_accounts(drafting or pilots, pilots, took - sequences + len(pilots))
        terms = self._terms_at(costs, sequences, depth) if plain else None
        for pilot in pilots:
            pilot.timed(seconds, pilot.fresh, plain)
            pilot.set_terms(terms)

    def _terms_at(self, costs: Costs, sequences: int, depth: int) -> Terms:
        """New ones only where the curve or the bubble has changed."""
        ratios, terms = costs.ratios(depth), self._terms
        if terms is None or terms.ratios is not ratios or terms.sequences != sequences or terms.bubble != self._bubble:
            terms = self._terms = Terms(ratios, sequences, MARGIN, self._bubble)
        return terms

    def close(self) -> None:
        """Writes what was measured and learned, and gives up what drafters share."""
        for source in self.sources.values():
            source.close()
        self.store.save()
        if self._file is None:
            return
        row = {
            "format": _FORMAT,
            "costs": {str(greedy): costs.to_json() for greedy, costs in self.costs.items()},
            "survival": [table.to_json() for table in self._survival],
            "bubble": self._bubble,
            "certainty": {
                name: {str(greedy): learned.to_json() for greedy, learned in source.confidence.items()}
                for name, source in self.sources.items()
                if source.confidence
            },
        }
        try:
            replace_file(self._file, json.dumps(row).encode())
        except OSError as error:
            _log.warning("%s could not be written: %s", self._file, error)

    def _suffix(self, text: Text) -> Drafter:
        shared = self._survival[0 if text.temperature == 0 else 1 if text.temperature <= _WARM else 2]
        return SuffixDrafter(text.prompt, shared.for_text(), self.store.snapshot(), on_close=shared.fold)

    def _restore(self, file: Path) -> None:
        """Reads what ``close`` wrote; a damaged file is as good as none."""
        try:
            row: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if row["format"] != _FORMAT:
                return
            survival = [Survival.from_json(table) for table in row["survival"]]
            bubble = float(row["bubble"])
            if len(survival) != len(self._survival) or not 0 <= bubble <= 1:
                raise ValueError("not a file of this program")
            for name, tables in row["certainty"].items():
                for greedy, learned in self.sources[name].confidence.items() if name in self.sources else ():
                    learned.restore(tables[str(greedy)])
            for greedy, costs in self.costs.items():
                costs.restore(row["costs"][str(greedy)])
            self._survival, self._bubble = survival, bubble
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s is damaged (%s): measuring anew", file, error)


def _settle_accounts(speculating: Sequence[Pilot], pilots: Sequence[Pilot], took: float) -> None:
    """Those that speculated share what the step cost beyond plain decoding of the tokens that came. ``took``: plain
    steps."""
    loss = (took - sum(pilot.fresh for pilot in pilots)) / len(speculating)
    for pilot in speculating:
        pilot.account.settle(pilot.fresh, pilot.fresh + loss)


def _structured(text: Text) -> Drafter | None:
    return StructuredDrafter(text.grammar) if text.grammar is not None else None


def machine_key(info: ModelInfo) -> str:
    """What costs depend on: machine, engine and its version, model and codec."""
    try:
        engine = version(_PACKAGES.get(info.backend, info.backend))
    except PackageNotFoundError:
        engine = "none"
    return _digest(
        platform.system(), platform.machine(), platform.processor(), info.device, info.backend, engine, model_key(info)
    )


def model_key(info: ModelInfo) -> str:
    """What token ids depend on."""
    return _digest(info.name, info.architecture, info.quantization, info.vocab_size, info.parameters)


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
