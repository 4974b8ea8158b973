"""A bench's report for people: a table of 80 columns, the reasons for its gaps, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from edgeinfer.cli.bars import bars
from edgeinfer.cli.tables import table
from edgeinfer.sanitize import sanitize
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.bench.report import Figure, Line, Report
    from edgeinfer.bench.statistics import Spread

COLUMNS = 80
_PLOTTED = ("decode", "prefill", "rows")


def summary(report: Report) -> str:
    """What was measured, and where."""
    model, machine, plan = report.model, report.machine, report.plan
    rounds = f"{report.rounds} round{'s' if report.rounds != 1 else ''}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    isa = f", {' '.join(machine.isa)}" if machine.isa else ""
    lines = [
        f"{model.name}: {model.architecture}, {model.parameters / 1e6:,.0f}M, mostly {model.quantization}, "
        f"{human_bytes(model.bytes)}",
        f"{machine.cpu}, {machine.cores} cores{isa}",
        f"{report.device}, {plan.threads} threads, {rounds}, seed {plan.seed}; {versions}",
        *report.notes,
    ]
    return "\n".join(sanitize(line, single_line=True) for line in lines)


def table_of(report: Report) -> str:
    """Sections of lines: for each engine median and half of the range, for each peer how many times better we are."""
    peers = report.engines[1:]
    head = ["", report.engines[0], *(title for peer in peers for title in (peer, "ratio"))]
    cells = [_row(line, report.engines) for line in report.lines]
    first, *rows = table(head, cells, COLUMNS, frozenset(range(1, len(head)))).splitlines()
    shown = [first]
    for (section, unit), found in groupby(zip(report.lines, rows, strict=True), key=_section):
        shown += [f"{section}, {unit}", *(row for _, row in found)]
    return "\n".join([*shown, "", *_legend(report)])


def plots(report: Report) -> str:
    """Bars of the sections that are about speed."""
    drawn = []
    for section, lines in groupby(report.lines, key=lambda line: line.section):
        shown = [line for line in lines if section.startswith(_PLOTTED) and line.compared]
        groups = [(line.label.strip(), _bars(line, report.engines)) for line in shown]
        groups = [(label, found) for label, found in groups if found]
        if groups:
            drawn.append(bars(f"{section}, {shown[0].unit} ({shown[0].better} is better)", groups, COLUMNS))
    return "\n\n".join(drawn)


def _section(row: tuple[Line, str]) -> tuple[str, str]:
    line, _ = row
    return line.section, "ms" if line.unit == "×" else line.unit


def _row(line: Line, engines: Sequence[str]) -> list[str]:
    cells = [f"  {line.label}", _figure(line.figures[engines[0]], line.unit)]
    for peer in engines[1:]:
        found = line.ratio(peer)
        cells += [_figure(line.figures[peer], line.unit), _spread(found) if found else ""]
    return cells


def _bars(line: Line, engines: Sequence[str]) -> list[tuple[str, float, str]]:
    spreads = {name: line.figures[name].spread for name in engines}
    return [(name, spread.median, number(spread.median)) for name, spread in spreads.items() if spread]


def _figure(figure: Figure, unit: str) -> str:
    spread = figure.spread
    if spread is None:
        return "–"
    return _spread(spread, unit) + ("!" if figure.disturbed else "")


def _spread(spread: Spread, unit: str = "") -> str:
    value = number(spread.median) + ("×" if unit == "×" else "")
    return f"{value} ±{spread.percent:.0f}%" if spread.count > 1 else value


def number(value: float) -> str:
    """Three digits that count: ``1,234``, ``245``, ``12.6``, ``0.034``."""
    if value >= 99.95:
        return f"{value:,.0f}"
    digits = 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:.{digits}f}"


def _legend(report: Report) -> list[str]:
    lines = ["±: half of the range of the rounds. ratio: how many times better edgeinfer is."]
    if any(figure.disturbed for line in report.lines for figure in line.figures.values()):
        lines.append("!: other processes took over a quarter of a core in some rounds, even when measured again.")
    lines += [f"{name}: {reason}" for name, reason in report.failures.items()]
    gaps: dict[tuple[str, str], list[str]] = {}
    for line in report.lines:
        for name, figure in line.figures.items():
            if figure.missing and not figure.values and name not in report.failures:
                gaps.setdefault((name, figure.missing), []).append(f"{line.section} {line.label.strip()}")
    lines += [f"{name}, {'; '.join(where)}: {reason}" for (name, reason), where in gaps.items()]
    return [sanitize(line, single_line=True) for line in lines]
