"""Figures as the app says them: short, and with their units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.conversations import Message, Stats
from edgeinfer.units import human_bytes

if TYPE_CHECKING:
    from edgeinfer.llm import LLM

GAP = " · "
"""Between two figures of a row."""
_ENDINGS = {"length": "cut by the limit", "cancelled": "stopped", "error": "failed"}


def count(tokens: float) -> str:
    """``940``, ``4.1k``, ``32k``."""
    if tokens < 1000:
        return f"{tokens:.0f}"
    thousands = tokens / 1000
    return f"{thousands:.1f}k" if thousands < 9.95 else f"{thousands:.0f}k"


def counted(number: int, what: str) -> str:
    """``1 message``, ``1,204 messages``."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def rate(tokens_per_second: float) -> str:
    digits = 0 if tokens_per_second >= 99.5 else 1
    return f"{tokens_per_second:.{digits}f} tok/s"


def per_step(tokens: float) -> str:
    return f"{tokens:.1f} tokens/step"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def context_meter(used: int, context: int) -> str:
    return f"ctx {count(used)}/{count(context)} ({100 * used // max(1, context)}%)"


def keys_and_values(llm: LLM, stats: Stats | None) -> str:
    """Their format, and how much smaller than exact ones those of a reply are."""
    info = llm.info
    exact = (stats.prompt + stats.completion) * info.kv_exact_bytes if stats is not None and stats.kv_bytes else 0
    saved = exact - stats.kv_bytes if stats is not None and exact else 0
    return f"KV {info.kv}, {human_bytes(saved)} saved" if saved > 0 and info.kv != "exact" else f"KV {info.kv}"


def foot(message: Message) -> str:
    """What stands below a reply."""
    parts = [*_ended(message), *_took(message.stats)]
    if message.stats is not None and message.stats.truncated:
        parts.insert(0, "the oldest messages were left out")
    return GAP.join(parts)


def _ended(message: Message) -> list[str]:
    if message.state == "error":
        return [f"failed: {message.note}" if message.note else "failed"]
    if message.state == "cancelled":
        return [message.note or "stopped"]
    reason = message.stats.finish_reason if message.stats else ""
    return [_ENDINGS[reason]] if reason in _ENDINGS else []


def _took(stats: Stats | None) -> list[str]:
    if stats is None or not stats.completion:
        return []
    parts = [f"{stats.completion:,} tokens"]
    if stats.decode_rate:
        parts.append(rate(stats.decode_rate))
    if stats.first_token:
        parts.append(f"first after {seconds(stats.first_token)}")
    if stats.cached:
        parts.append(f"reused {stats.cached:,} of {stats.prompt:,}")
    if stats.drafted:
        parts.append(per_step(stats.tokens_per_step))
    return parts
