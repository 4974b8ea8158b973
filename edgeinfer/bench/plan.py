"""What is measured: cases, rounds and limits, checked before anything is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from edgeinfer.errors import BadRequest

Kind: TypeAlias = Literal["decode", "prefill", "rows"]

OURS = "edgeinfer"
PEERS = ("llama-cpp", "mlx-lm")
DECODED = 64
"""Tokens of one decode measurement; a slow engine makes fewer of them."""
WARM_UP = 2
"""Tokens made untimed before each decode measurement."""
PACING_TOKENS = 32
"""A prompt of this many tokens tells how long others will take."""
PROMPT = 512
"""Tokens of the prompt after which memory is read."""
DEEPEST_ROWS = 1024
"""Rows are costed at the depths of a plan up to this one."""
MOST = 1 << 20
"""No length or depth is larger."""
MOST_ROWS = 512


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure.

    decode: ``size`` tokens, one a step, after ``depth`` tokens. prefill: a prompt of ``size`` tokens, logits of the
    last. rows: one step of ``size`` tokens with all their logits after ``depth`` tokens, as verifying a draft takes.
    """

    kind: Kind
    size: int
    depth: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the sequence holds in the end."""
        return self.depth + self.size + (1 + WARM_UP if self.kind == "decode" else 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths in tokens, times in seconds.

    window: what one measurement should last at least. patience: what one case may take of one engine before it gets
    no further rounds; one that is foreseen to take longer is left out. limit: no round or rerun starts after it.
    reruns: what all reruns together may take; a machine that is never quiet is not waited for.
    """

    depths: tuple[int, ...] = (0, 1024, 4096)
    prefill: tuple[int, ...] = (128, 512, 2048)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    rounds: int = 5
    threads: int = 0
    kv: str = "exact"
    seed: int = 0
    window: float = 0.4
    patience: float = 60.0
    limit: float = 3600.0
    reruns: float = 90.0
    quick: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (("depths", 0, MOST), ("prefill", 1, MOST), ("rows", 1, MOST_ROWS)):
            values: tuple[int, ...] = getattr(self, name)
            if any(not least <= value <= most for value in values):
                raise BadRequest(f"{name}={_listed(values)}: expected numbers from {least} to {most}", name)
            object.__setattr__(self, name, tuple(sorted(set(values))))
        if not 1 <= self.rounds <= 1000:
            raise BadRequest(f"rounds={self.rounds}: expected 1 to 1000", "rounds")
        if not 0 <= self.threads <= 1024:
            raise BadRequest(f"threads={self.threads}: expected 0 (the physical cores) to 1024", "threads")
        if not self.cases:
            raise BadRequest("nothing to measure: give depths, prefill lengths or rows", "depths")

    @property
    def cases(self) -> tuple[Case, ...]:
        """In the order of a table; rounds shuffle them."""
        return (
            *(Case("decode", DECODED, depth) for depth in self.depths),
            *(Case("prefill", length) for length in self.prefill),
            *(Case("rows", rows, depth) for depth in self.depths if depth <= DEEPEST_ROWS for rows in self.rows),
        )

    @property
    def context(self) -> int:
        """Tokens that a sequence must be able to hold."""
        return max(case.tokens for case in self.cases)

    def within(self, context: int, asked: frozenset[str] = frozenset()) -> Plan:
        """The plan for a model of this context: lengths that nobody asked for and that do not fit are left out.

        Raises BadRequest when one of ``asked`` (names of fields) holds a length that does not fit.
        """
        beyond = max(DECODED + WARM_UP + 1, *(rows for rows in self.rows if rows <= context), 0)
        room = {"depths": context - beyond, "prefill": context, "rows": context}
        kept = {}
        for name, most in room.items():
            values: tuple[int, ...] = getattr(self, name)
            kept[name] = tuple(value for value in values if value <= most)
            if kept[name] != values and name in asked:
                raise BadRequest(
                    f"{name}={_listed(values)}: the model's context is {context} tokens, expected at most {most}", name
                )
        return replace(self, **kept)  # type: ignore[arg-type]


QUICK = Plan(
    depths=(0,),
    prefill=(256,),
    rows=(1, 4, 8),
    rounds=3,
    threads=2,
    window=0.2,
    patience=3.0,
    limit=12.0,
    reruns=4.0,
    quick=True,
)
"""A look of about 20 seconds at a small model."""


def checked_peers(names: Sequence[str]) -> tuple[str, ...]:
    """The engines to compare with, each once. Raises BadRequest for one that is not known."""
    for name in names:
        if name not in PEERS:
            near = difflib.get_close_matches(name, PEERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(PEERS)}"
            raise BadRequest(f"against={name!r}: no such engine; {hint}", "against")
    return tuple(dict.fromkeys(names))


def parse_lengths(text: str, name: str) -> tuple[int, ...]:
    """``0,1024`` -> (0, 1024), ``none`` -> (). Raises BadRequest."""
    if text == "none":
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 8 for word in words):
        raise BadRequest(f"{name}={text!r}: expected none, or whole numbers with commas between like 128,512", name)
    return tuple(int(word) for word in words)


def _listed(values: Sequence[int]) -> str:
    return ",".join(str(value) for value in values)
