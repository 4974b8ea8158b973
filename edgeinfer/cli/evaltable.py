"""The costs of KV formats as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.cli.tables import table, width

if TYPE_CHECKING:
    from edgeinfer.evaluation.formats import FormatCost

_HEAD = ("format", "bytes a token", "of fp16", "KL", "median", "99.9 %", "flips", "perplexity")


def formats_table(rows: Sequence[FormatCost]) -> str:
    """A line a format, those of most bytes first."""
    depths = sorted({depth for row in rows for depth in row.decode})
    head = (*_HEAD, *(f"tokens/s at {depth:,}" for depth in depths))
    cells = [
        (
            row.format,
            f"{row.bytes_per_token:,.0f}",
            f"{row.bytes_ratio:.3f}",
            f"{row.divergence.mean:.5f}",
            f"{row.divergence.median:.5f}",
            f"{row.divergence.p999:.3f}",
            f"{100 * row.divergence.flips:.1f} %",
            f"× {row.divergence.ppl_ratio:.4f}",
            *(f"{row.decode[depth]:.1f}" if depth in row.decode else "" for depth in depths),
        )
        for row in sorted(rows, key=lambda row: -row.bytes_per_token)
    ]
    return table(head, cells, width(), frozenset(range(1, len(head))))
