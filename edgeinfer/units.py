"""Figures as people read them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """``98 MB``, ``1.3 GB``: powers of 1000, as disks and downloads are sold."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
