"""The result of a bench: lines of figures, ratios and reasons, for a table, a plot or JSON.

As JSON (``Report.to_json``)::

    {"schema": 1,
     "model": {"name", "file", "architecture", "quantization", "parameters", "bytes"},
     "machine": {"system", "cpu", "cores", "logical_cores", "isa", "memory", "load", "python", "versions"},
     "settings": {"threads", "context", "device", "rounds", "seed", "quick"},
     "engines": [{"name", "failed": null or why}],
     "lines": [{"section", "label", "unit", "better": "higher" or "lower", "case": {"kind", "size", "depth"} or null,
                "figures": {engine: {"median", "low", "high", "samples": {round: value}, "disturbed": [round],
                                     "variant"} or {"missing": why}},
                "ratios": {engine: {"median", "low", "high", "rounds"}}}],
     "reruns": measurements that were made again because other processes were in the way,
     "notes": [text]}

Rounds count from 0. A ratio says how many times better edgeinfer is, whether a high or a low figure is the better one;
it is taken in each round that has both sides, and its median and range are those of the rounds. ``variant`` tells
which of llama.cpp's two kinds of attention was the faster one in that case; ``disturbed`` are rounds in which others
took more than a quarter of a core even after the reruns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from edgeinfer.bench.machine import Machine
from edgeinfer.bench.plan import OURS, Case, Plan
from edgeinfer.bench.probe import Probe
from edgeinfer.bench.session import Measured, disturbed
from edgeinfer.bench.statistics import Spread, ratio

Better: TypeAlias = Literal["higher", "lower"]

VARIANTS: Mapping[str, Mapping[str, str]] = {
    OURS: {OURS: ""},
    "llama-cpp": {"llama-cpp flash": "flash attention", "llama-cpp plain": "no flash attention"},
    "mlx-lm": {"mlx-lm": ""},
}
"""Engine -> the engines of a session that stand for it, the best of which counts, and what they differ in."""
API = "llm.generate"


@dataclass(frozen=True, slots=True)
class Figure:
    """One engine's values by round, in the line's unit; without any, ``missing`` says why."""

    values: Mapping[int, float] = field(default_factory=dict)
    disturbed: tuple[int, ...] = ()
    variant: str = ""
    missing: str = ""

    @property
    def spread(self) -> Spread | None:
        return Spread.of(list(self.values.values())) if self.values else None

    def map(self, function: Callable[[float], float]) -> Figure:
        values = {number: function(value) for number, value in self.values.items()}
        return Figure(values, self.disturbed, self.variant, self.missing)

    def over(self, other: Figure) -> Figure:
        """Round by round."""
        both = sorted(self.values.keys() & other.values.keys())
        values = {number: self.values[number] / other.values[number] for number in both}
        return Figure(values, self.disturbed, self.variant, self.missing or other.missing)


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of each engine."""

    section: str
    label: str
    unit: str
    better: Better
    figures: Mapping[str, Figure]
    case: Case | None = None
    compared: bool = True

    def ratio(self, engine: str) -> Spread | None:
        """How many times better ours is; None where one of the two is missing."""
        ours, theirs = self.figures.get(OURS), self.figures.get(engine)
        if not self.compared or engine == OURS or ours is None or theirs is None:
            return None
        over, under = (ours, theirs) if self.better == "higher" else (theirs, ours)
        return ratio(over.values, under.values)


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    file: str
    architecture: str
    quantization: str
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    model: Model
    machine: Machine
    plan: Plan
    device: str
    engines: tuple[str, ...]
    failures: Mapping[str, str]
    lines: tuple[Line, ...]
    rounds: int
    reruns: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the module's docstring lays them out."""
        plan = self.plan
        return {
            "schema": 1,
            "model": asdict(self.model),
            "machine": asdict(self.machine),
            "settings": {
                "threads": plan.threads,
                "context": plan.context,
                "device": self.device,
                "rounds": self.rounds,
                "seed": plan.seed,
                "quick": plan.quick,
            },
            "engines": [{"name": name, "failed": self.failures.get(name)} for name in self.engines],
            "lines": [_line_json(line, self.engines) for line in self.lines],
            "reruns": self.reruns,
            "notes": list(self.notes),
        }


def _line_json(line: Line, engines: Sequence[str]) -> dict[str, Any]:
    return {
        "section": line.section,
        "label": line.label,
        "unit": line.unit,
        "better": line.better,
        "case": asdict(line.case) if line.case else None,
        "figures": {name: _figure_json(figure) for name, figure in line.figures.items()},
        "ratios": {
            name: {"median": found.median, "low": found.low, "high": found.high, "rounds": found.count}
            for name in engines
            if (found := line.ratio(name))
        },
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    spread = figure.spread
    if spread is None:
        return {"missing": figure.missing}
    return {
        "median": spread.median,
        "low": spread.low,
        "high": spread.high,
        "samples": dict(figure.values),
        "disturbed": list(figure.disturbed),
        "variant": figure.variant,
    }


def build_lines(measured: Measured, plan: Plan, engines: Sequence[str]) -> tuple[Line, ...]:
    """The lines of a table, in its order."""
    return (
        *_decode_lines(measured, plan, engines),
        *_prefill_lines(measured, plan, engines),
        *_rows_lines(measured, plan, engines),
        *_probe_lines(measured, engines),
    )


def failures_by_engine(measured: Measured, engines: Sequence[str]) -> dict[str, str]:
    """Engines that failed in all their variants, and why the first of them did."""
    failed = {}
    for name in engines:
        reasons = [measured.failures[variant] for variant in VARIANTS[name] if variant in measured.failures]
        if len(reasons) == len(VARIANTS[name]):
            failed[name] = reasons[0]
    return failed


def _decode_lines(measured: Measured, plan: Plan, engines: Sequence[str]) -> list[Line]:
    lines = []
    for depth in plan.depths:
        case = next(case for case in plan.cases if case.kind == "decode" and case.depth == depth)
        figures = {name: _best(measured, name, case).map(_reciprocal) for name in engines}
        lines.append(Line("decode", f"depth {depth:,}", "tokens/s", "higher", figures, case))
        if API in measured.cells:
            through = _figure(measured, API, case).map(_reciprocal)
            lines.append(Line("decode", API, "tokens/s", "higher", {**figures, OURS: through}, case))
    return lines


def _prefill_lines(measured: Measured, plan: Plan, engines: Sequence[str]) -> list[Line]:
    lines = []
    for case in plan.cases:
        if case.kind == "prefill":
            figures = {name: _best(measured, name, case).map(_rate_of(case.size)) for name in engines}
            lines.append(Line("prefill", f"{case.size:,} tokens", "tokens/s", "higher", figures, case))
    return lines


def _rows_lines(measured: Measured, plan: Plan, engines: Sequence[str]) -> list[Line]:
    lines = []
    for depth in sorted({case.depth for case in plan.cases if case.kind == "rows"}):
        cases = [case for case in plan.cases if case.kind == "rows" and case.depth == depth]
        times = {case: {name: _best(measured, name, case) for name in engines} for case in cases}
        section = f"rows at depth {depth:,}"
        for case, figures in times.items():
            in_ms = {name: figure.map(lambda seconds: 1000 * seconds) for name, figure in figures.items()}
            lines.append(Line(section, _rows(case.size), "ms", "lower", in_ms, case))
        if cases[0].size == 1:
            for case in cases[1:]:
                costs = {name: times[case][name].over(times[cases[0]][name]) for name in engines}
                lines.append(Line(section, f"{case.size} over 1", "×", "lower", costs, case, compared=False))
    return lines


_PROBE_LINES: tuple[tuple[str, str, str, Callable[[Probe], float | None], str], ...] = (
    ("load", "import", "s", attrgetter("imports"), ""),
    ("load", "weights", "s", attrgetter("weights"), "reads the tokenizer with them"),
    ("load", "and tokenizer", "s", attrgetter("load"), "the checkpoint has none"),
    ("memory", "loaded", "MB", lambda probe: probe.loaded / 1e6, ""),
    ("memory", "after prompt", "MB", lambda probe: in_megabytes(probe.prompted), "the prompt would take too long"),
    ("memory", "peak", "MB", lambda probe: probe.peak / 1e6, ""),
)
"""Section, label, unit, value, and why there may be none."""


def _probe_lines(measured: Measured, engines: Sequence[str]) -> list[Line]:
    lines = []
    for section, label, unit, value, absent in _PROBE_LINES:
        figures = {}
        for name in engines:
            variant = next(iter(VARIANTS[name]))
            probes = measured.probes.get(variant, {})
            values = {number: one for number, probe in probes.items() if (one := value(probe)) is not None}
            busy = tuple(number for number, probe in probes.items() if disturbed(probe)) if section == "load" else ()
            missing = measured.failures.get(variant) or absent or "not measured"
            figures[name] = Figure(values, busy, missing=missing)
        lines.append(Line(section, label, unit, "lower", figures))
    return lines


def in_megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def _best(measured: Measured, engine: str, case: Case) -> Figure:
    """The figure of an engine, in seconds; of several variants the one with the lower median."""
    figures = [_figure(measured, name, case, said) for name, said in VARIANTS[engine].items() if name in measured.cells]
    found = [figure for figure in figures if figure.spread]
    return min(found, key=lambda figure: Spread.of(list(figure.values.values())).median) if found else figures[0]


def _figure(measured: Measured, name: str, case: Case, variant: str = "") -> Figure:
    cell = measured.cells[name][case]
    missing = cell.skipped or measured.failures.get(name, "not measured")
    return Figure(dict(cell.seconds), tuple(sorted(cell.disturbed)), variant, missing)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _reciprocal(seconds: float) -> float:
    return 1 / seconds


def _rate_of(count: int) -> Callable[[float], float]:
    return lambda seconds: count / seconds
