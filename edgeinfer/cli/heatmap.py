"""Needles by depth and length: shaded cells in the terminal, or a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.cli.bars import unicode_blocks
from edgeinfer.errors import BackendUnavailable

if TYPE_CHECKING:
    from edgeinfer.evaluation.needle import Cell

INSTALL = "pip install 'edgeinfer[plots]'"
_SHADES = " ░▒▓█"


def heatmap(cells: Sequence[Cell]) -> str:
    """A row a depth, a column a length; each cell a shade and the share that was found."""
    lengths, depths, found = _grid(cells)
    head = "depth  " + "".join(f"{length:>9}" for length in lengths)
    rows = [
        f"{100 * depth:4.0f} %  " + "".join(f"{_shaded(found[length, depth]):>9}" for length in lengths)
        for depth in depths
    ]
    mean = sum(cell.found for cell in cells) / len(cells)
    return "\n".join([head, *rows, f"all together: {100 * mean:.1f} %"])


def check_plots() -> None:
    """Raises BackendUnavailable where pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendUnavailable(f"a picture needs matplotlib, which is not installed; run: {INSTALL}", INSTALL)


def write_png(cells: Sequence[Cell], path: Path, title: str) -> None:
    """Draws the map into a file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    lengths, depths, found = _grid(cells)
    figure, axes = pyplot.subplots(figsize=(2 + 0.9 * len(lengths), 1.6 + 0.5 * len(depths)), layout="constrained")
    rows = [[100 * found[length, depth] for length in lengths] for depth in depths]
    axes.imshow(rows, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
    axes.set(xlabel="tokens", ylabel="depth")
    axes.set_title(title, fontsize="medium")
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            axes.text(x, y, f"{value:.0f}", ha="center", va="center")
    figure.savefig(path, dpi=150, format="png")
    pyplot.close(figure)


def _grid(cells: Sequence[Cell]) -> tuple[list[int], list[float], dict[tuple[int, float], float]]:
    found = {(cell.length, cell.depth): cell.found for cell in cells}
    return sorted({cell.length for cell in cells}), sorted({cell.depth for cell in cells}), found


def _shaded(found: float) -> str:
    text = f"{100 * found:.0f}"
    return f"{_SHADES[round(found * (len(_SHADES) - 1))] * 3} {text:>3}" if unicode_blocks() else text
