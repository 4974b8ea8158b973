"""What all requests of a loaded model share: costs, chances, the store of outputs, and the choice in each step."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from edgeinfer.backends.base import ModelInfo
from edgeinfer.settings import Settings
from edgeinfer.speculation.controller import admit
from edgeinfer.speculation.costs import Costs
from edgeinfer.speculation.drafter import Draft, Drafter
from edgeinfer.speculation.pilot import Pilot
from edgeinfer.speculation.store import OutputStore, replace_file
from edgeinfer.speculation.suffix import SuffixDrafter
from edgeinfer.speculation.survival import Survival

_FORMAT = 1
_FIRST_BUBBLE = 0.15  # plain steps that leaving the pipeline costs, before it was measured
_PACE = 0.2
_HICCUP = 1.5  # times the usual cost, beyond which a step was held up by something else
_WARM = 0.7  # the temperature up to which chances are counted together
_PACKAGES = {"mlx": "mlx", "llama.cpp": "llama-cpp-python"}
_log = logging.getLogger(__name__)

MakeDrafters: TypeAlias = Callable[[Sequence[int], float], Sequence[Drafter]]
"""(prompt, temperature) -> the drafters of a request."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding request in a step: ``pipelined``: its last token is still being computed."""

    pilot: Pilot | None
    room: int  # tokens it may still make beyond the next one
    pipelined: bool


class Shared:
    """One for a loaded model. ``folder``: where measurements are kept; ``keep_outputs``: outputs too, on disk."""

    def __init__(
        self,
        info: ModelInfo,
        folder: Path | None = None,
        keep_outputs: bool = False,
        make_drafters: MakeDrafters | None = None,
    ) -> None:
        self._info = info
        self._make = make_drafters or self._suffix
        self._file = folder / f"{machine_key(info)}.json" if folder else None
        self.store = OutputStore(folder / f"{model_key(info)}.outputs" if folder and keep_outputs else None)
        self.costs = {greedy: Costs.prior(info.backend, info.device) for greedy in (True, False)}
        self._survival = [Survival.prior() for _ in range(3)]
        self._bubble = _FIRST_BUBBLE
        if self._file:
            self._restore(self._file)

    def pilot(self, prompt: Sequence[int], temperature: float) -> Pilot:
        """For one request. Its output is remembered when it is closed."""
        drafters = self._make(prompt, temperature)
        lead = tuple(prompt[-3:])
        return Pilot(
            drafters, self._info.vocab_size, temperature == 0, on_close=lambda output: self.store.add(lead, output)
        )

    def choose(self, candidates: Sequence[Candidate], depth: int) -> None:
        """Gives each pilot its draft for a step of all ``candidates``, whose texts are ``depth`` tokens long."""
        offers: list[tuple[Candidate, Pilot, Draft]] = []
        sequences = len(candidates)
        for candidate in candidates:
            pilot = candidate.pilot
            if pilot is None:
                continue
            known = self.costs[pilot.greedy].plain(sequences, depth) is not None
            draft = pilot.offer(candidate.room, known)
            if candidate.pipelined:  # its first token is being computed already
                draft = Draft(draft.tokens[1:], draft.survival[1:])
            if draft.tokens:
                offers.append((candidate, pilot, draft))
        if not offers:
            return
        costs = self.costs[offers[0][1].greedy]
        margin = max(pilot.account.margin for _, pilot, _ in offers)
        lengths = admit([draft for _, _, draft in offers], sequences, costs.ratios(depth), margin)
        gained = sum(sum(draft.survival[:count]) for (_, _, draft), count in zip(offers, lengths, strict=True))
        worth = 1 + gained / sequences - self._ratio(costs, sequences + sum(lengths), sequences, depth)
        for (candidate, pilot, _), length in zip(offers, lengths, strict=True):
            if not candidate.pipelined:
                pilot.choose(length)
            elif length and worth > self._bubble:
                pilot.leaving = True

    def settle(
        self, candidates: Sequence[Candidate], rows: int, depth: int, seconds: float, entered: bool, steady: bool
    ) -> None:
        """A step of ``rows`` tokens took ``seconds``. ``steady``: a plain one, after a plain one; ``entered``: it only
        started the pipeline again."""
        pilots = [candidate.pilot for candidate in candidates if candidate.pilot is not None]
        if not pilots:
            return
        sequences, costs = len(candidates), self.costs[pilots[0].greedy]
        drafting = [pilot for pilot in pilots if pilot.draft]
        if steady:
            costs.learn_plain(sequences, depth, seconds)
        plain = costs.plain(sequences, depth)
        if not plain:
            return
        if drafting:
            costs.learn_verify(rows, sequences, depth, seconds)
        elif entered:
            self._bubble += _PACE * (min(seconds / plain, 1.0) - self._bubble)
        for pilot in pilots:
            pilot.timed(seconds, plain)
        if not steady:
            speculating = drafting or pilots
            came = sum(pilot.fresh for pilot in pilots) + sequences - len(pilots)
            usual = self._ratio(costs, rows, sequences, depth) if drafting else 1.0
            loss = (sequences * min(seconds / plain, _HICCUP * usual) - came) / len(speculating)
            for pilot in speculating:
                pilot.account.settle(pilot.fresh, pilot.fresh + loss)

    def _ratio(self, costs: Costs, rows: int, sequences: int, depth: int) -> float:
        """The usual cost of so many rows, in plain steps of so many sequences."""
        ratios = costs.ratios(depth)
        return ratios[min(rows, len(ratios) - 1)] / ratios[min(sequences, len(ratios) - 1)]

    def close(self) -> None:
        """Writes what was measured and learned."""
        self.store.save()
        if self._file is None:
            return
        row = {
            "format": _FORMAT,
            "costs": {str(greedy): costs.to_json() for greedy, costs in self.costs.items()},
            "survival": [table.to_json() for table in self._survival],
            "bubble": self._bubble,
        }
        try:
            replace_file(self._file, json.dumps(row).encode())
        except OSError as error:
            _log.warning("%s could not be written: %s", self._file, error)

    def _suffix(self, prompt: Sequence[int], temperature: float) -> Sequence[Drafter]:
        shared = self._survival[0 if temperature == 0 else 1 if temperature <= _WARM else 2]
        return [SuffixDrafter(prompt, shared.for_text(), self.store.snapshot(), on_close=shared.fold)]

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
            for greedy, costs in self.costs.items():
                costs.restore(row["costs"][str(greedy)])
            self._survival, self._bubble = survival, bubble
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s is damaged (%s): measuring anew", file, error)


def shared_by(settings: Settings) -> Callable[[ModelInfo], Shared]:
    """Makes a model's ``Shared``, which keeps its measurements where the user's settings say."""
    return lambda info: Shared(info, settings.paths.measured, settings.keep_outputs)


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
