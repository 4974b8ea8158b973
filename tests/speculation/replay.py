"""Plays a known answer through drafter and controller, with steps that take as long as a stored curve says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeinfer.backends.base import ModelInfo
from edgeinfer.speculation.drafter import Text
from edgeinfer.speculation.speculation import Shared
from edgeinfer.speculation.step import Candidate

Curve = dict[int, float]
CURVES: dict[str, Curve] = {
    # This engine's own kernels, SmolLM2-135M Q4_1, two threads of an AMD Zen 4.
    "native": {1: 1.0, 2: 1.02, 3: 1.1, 4: 1.25, 5: 1.37, 6: 1.41, 8: 1.68, 12: 2.25, 16: 2.78, 32: 5.04, 64: 9.84},
    # llama.cpp on the same machine, model and threads.
    "llama.cpp": {1: 1.0, 2: 1.6, 3: 1.95, 4: 2.3, 8: 3.72, 16: 6.67, 32: 12.74, 64: 23.38},
    # Published: an M4 Pro with 8-bit weights, and an M3 Max with MLX's own 4-bit kernels, whose curve has steps.
    "m4-pro-8bit": {1: 1.0, 2: 1.05, 4: 1.1, 5: 1.14, 6: 1.43, 8: 1.71, 16: 2.5, 32: 2.6, 33: 5.1, 64: 5.2},
    "m3-max-4bit": {1: 1.0, 2: 1.0, 4: 1.28, 6: 2.04, 8: 2.5, 9: 3.1, 12: 3.9, 32: 3.97, 33: 7.8, 64: 7.9},
}
"""Cost of a step by rows, in plain steps; straight lines between."""

INFO = ModelInfo(
    name="oracle",
    architecture="oracle",
    backend="mlx",
    device="cpu",
    quantization="none",
    vocab_size=1 << 20,
    context=1 << 20,
    parameters=0,
    weight_bytes=0,
    kv_bytes_per_token=0,
)
PLAIN = 0.004  # seconds


@dataclass
class Played:
    """What answers took: ``times`` holds a figure for each token, in plain steps."""

    times: list[float] = field(default_factory=list)
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def speedup(self) -> float:
        return len(self.times) / sum(self.times)

    def worst(self, window: int = 512) -> float:
        """The least speedup over any so many tokens in a row; of all where there are fewer."""
        sums = np.cumsum([0.0, *self.times])
        width = min(window, len(self.times))
        return float(width / (sums[width:] - sums[:-width]).max())


def step_cost(curve: Curve) -> Callable[[int], float]:
    rows, costs = list(curve), list(curve.values())
    return lambda count: float(np.interp(count, rows, costs))


def play(
    shared: Shared,
    prompt: Sequence[int],
    answer: Sequence[int],
    cost: Callable[[int], float],
    played: Played,
    slowdown: Callable[[int], float] = lambda token: 1.0,
) -> None:
    """Decodes ``answer`` as a backend without a pipeline does. ``slowdown``: of the whole machine, by token."""
    pilot = shared.pilot(Text(prompt))
    done = 0
    while done < len(answer):
        candidate = Candidate(pilot, len(answer) - done - 1, pipelined=False)
        shared.choose([candidate], depth=len(prompt) + done)
        draft = list(pilot.draft)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == answer[done + accepted]:
            accepted += 1
        fresh = answer[done : done + accepted + 1]
        units = cost(1 + len(draft)) * slowdown(done)
        pilot.observe(fresh, accepted, decoding=True, room=len(answer) - done - len(fresh) - 1)
        shared.settle([candidate], 1 + len(draft), len(prompt) + done, units * PLAIN, False, not draft)
        played.times += [units / len(fresh)] * len(fresh)
        played.steps += 1
        played.drafted += len(draft)
        played.accepted += accepted
        done += len(fresh)
    pilot.close(answer)
