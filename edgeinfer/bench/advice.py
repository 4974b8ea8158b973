"""What limits decoding with one model at one depth on this machine, and what would help: measured, not looked up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import psutil

from edgeinfer.backends.base import Chunk
from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.bench.bandwidth import read_bandwidth
from edgeinfer.bench.machine import Machine, this_machine
from edgeinfer.bench.plan import DECODED, WARM_UP
from edgeinfer.bench.seam import SeamSubject
from edgeinfer.errors import BadRequest

Part = Literal["weights", "KV cache", "attention", "decode loop"]

FORMATS = ("exact", "k8v4", "k4v4")
ROWS = (2, 4, 8)
ROOM = DECODED + WARM_UP + 1
"""Tokens of the context that measuring takes."""
TIGHT_BITS = 4.6
"""A weight of a 4-bit quant with its share of scales."""
_LOOP_BINDS = 0.9  # of a step: then nothing else that takes less time would show


@dataclass(frozen=True, slots=True)
class Advice:
    """Seconds a token, by what they go to, and what each change would make of them.

    step: at ``depth``. shallow: with nothing before the token, which is the weights' time. kv_read: the share of the
    rest that reading the cache takes at ``bandwidth``. loop: of the host, beside the computing that it hands over.
    formats: steps measured with other formats of keys and values. verify: steps of several rows, by rows.
    """

    model: str
    machine: Machine
    threads: int
    depth: int
    kv: str
    bandwidth: float
    weight_bytes: int
    bits: float
    kv_bytes: int
    step: float
    shallow: float
    loop: float
    formats: dict[str, float]
    verify: dict[int, float]

    @property
    def weight_read(self) -> float:
        """Seconds that reading all weights takes at ``bandwidth``, no more than the whole step."""
        return min(self.shallow, self.weight_bytes / self.bandwidth)

    @property
    def kv_read(self) -> float:
        return min(self.deep, self.kv_bytes / self.bandwidth)

    @property
    def deep(self) -> float:
        """What the depth adds."""
        return max(0.0, self.step - self.shallow)

    @property
    def parts(self) -> dict[Part, float]:
        """Seconds; the loop runs beside the others."""
        return {
            "weights": min(self.shallow, self.step),
            "KV cache": self.kv_read,
            "attention": self.deep - self.kv_read,
            "decode loop": self.loop,
        }

    @property
    def binds(self) -> Part:
        if self.loop >= _LOOP_BINDS * self.step:
            return "decode loop"
        computed = {part: seconds for part, seconds in self.parts.items() if part != "decode loop"}
        return max(computed, key=lambda part: computed[part])

    @property
    def tighter_quant(self) -> float:
        """The most that a quant of ``TIGHT_BITS`` could save of a step, in seconds; 0 where weights are as tight."""
        return max(0.0, 1 - TIGHT_BITS / self.bits) * self.parts["weights"]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"parts": self.parts, "binds": self.binds, "tighter_quant": self.tighter_quant}


def advise(
    path: Path,
    context: int,
    *,
    name: str = "",
    kv: str = "auto",
    threads: int = 0,
    rounds: int = 3,
    on_step: Callable[[str], None] = lambda doing: None,
) -> Advice:
    """Measures decoding just before ``context`` tokens are full, and with nothing before it.

    Raises BadRequest for a context that is too short to measure in, and what loading raises.
    """
    depth = context - ROOM - max(ROWS)
    if depth < 1:
        raise BadRequest(f"context={context}: expected {ROOM + max(ROWS) + 1} tokens or more", "context")
    threads = threads or psutil.cpu_count(logical=False) or 1
    on_step("memory bandwidth")
    bandwidth = read_bandwidth(threads)
    subject = SeamSubject(MLXBackend.load(path, context, threads, kv))
    try:
        info = subject.backend.info
        on_step("decoding with nothing before")
        subject.hold(0)
        shallow, loop = _decode(subject, rounds), _loop(subject)
        on_step(f"decoding behind {depth} tokens, {info.kv}")
        subject.hold(depth)
        step = _decode(subject, rounds)
        kv_bytes = subject.held_bytes
        on_step("steps of several rows")
        verify = {rows: _best(partial(subject.verify, rows), rounds) for rows in (1, *ROWS)}
    finally:
        subject.close()
    formats = {info.kv: step}
    for form in FORMATS:
        if form not in formats:
            on_step(f"decoding behind {depth} tokens, {form}")
            formats[form] = _with_format(path, context, depth, threads, form, rounds)
    return Advice(
        model=name or info.name,
        machine=this_machine(),
        threads=threads,
        depth=depth,
        kv=info.kv,
        bandwidth=bandwidth,
        weight_bytes=info.weight_bytes,
        bits=8 * info.weight_bytes / info.parameters,
        kv_bytes=kv_bytes,
        step=step,
        shallow=shallow,
        loop=loop,
        formats=formats,
        verify=verify,
    )


def _with_format(path: Path, context: int, depth: int, threads: int, form: str, rounds: int) -> float:
    subject = SeamSubject(MLXBackend.load(path, context, threads, form))
    try:
        subject.hold(depth)
        return _decode(subject, rounds)
    finally:
        subject.close()


def _decode(subject: SeamSubject, rounds: int) -> float:
    """Seconds a token: of the quickest round, since whatever else the machine does only adds."""
    return _best(lambda: subject.decode(DECODED), rounds) / DECODED


def _best(measure: Callable[[], float], rounds: int) -> float:
    return min(measure() for _ in range(rounds))


def _loop(subject: SeamSubject) -> float:
    """Seconds that the host takes to hand a step over, without waiting for what it computes."""
    state, taken = subject.backend.open(), []
    for _ in range(DECODED):
        started = time.perf_counter()
        [logits] = subject.backend.step([Chunk(state, [0], "last")])
        state.accept(1)
        taken.append(time.perf_counter() - started)
        subject.wait(logits)
    state.close()
    return median(taken)
