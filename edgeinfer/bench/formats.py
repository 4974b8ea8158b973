"""Decoding with each format of keys and values, by depth, in turn in one process that loads the weights once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from edgeinfer.backends.mlx import MLXBackend
from edgeinfer.bench.plan import DECODED, WARM_UP
from edgeinfer.bench.seam import SeamSubject
from edgeinfer.converted.opening import open_model
from edgeinfer.loading.loader import kv_policy
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline


@dataclass(frozen=True, slots=True)
class Decoding:
    """At one depth: tokens a second, the median of the rounds, and the bytes that keys and values hold there."""

    rate: float
    held: int


def decode_by_depth(
    path: Path,
    formats: Sequence[str],
    depths: Sequence[int],
    threads: int = 0,
    rounds: int = 3,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[int, Decoding]]:
    """Format -> depth -> decoding. Raises BadRequest for a depth that the model's context does not hold."""
    context = max(depths) + DECODED + WARM_UP + 1
    total = len(formats) * sum(depth + rounds * DECODED for depth in depths)
    done, found = 0, {name: dict[int, Decoding]() for name in formats}
    with ExitStack() as closing, open_model(path) as file:
        exact = MLXBackend.load(path, context, threads)
        closing.callback(exact.close)
        outline = build(file, Outline)
        subjects = {name: SeamSubject(exact.in_format(kv_policy(file, outline, name))) for name in formats}
        for subject in subjects.values():
            closing.callback(subject.close)
        for depth in sorted(depths):
            taken: dict[str, list[float]] = {name: [] for name in formats}
            for subject in subjects.values():
                subject.hold(depth)
                done += depth
                on_progress(done, total)
            for _ in range(rounds):
                for name, subject in subjects.items():
                    taken[name].append(subject.decode(DECODED) / DECODED)
                    done += DECODED
                    on_progress(done, total)
            for name, subject in subjects.items():
                found[name][depth] = Decoding(1 / median(taken[name]), subject.held_bytes)
    return found
