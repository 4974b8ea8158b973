"""Whether a model fits this machine, in bytes, before any weight is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from edgeinfer import ops
from edgeinfer.cache.layout import Layout
from edgeinfer.catalog import largest_within
from edgeinfer.errors import BadRequest, MemoryLimit
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading.registry import Model, build
from edgeinfer.memory import free_memory
from edgeinfer.nn.tensors import Outline
from edgeinfer.units import human_bytes

MOST_CONTEXT = 32768
"""Tokens that a context grows to by itself."""
LEAST_CONTEXT = 512
UNUSED = ("token_embd.weight", "per_layer_token_embd.weight")
"""Matrices whose rows are looked up, not multiplied."""
SCRATCH_ROWS = 512
"""Tokens of a prompt that are computed at once."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes a loaded model takes, and the context it was trained for, in tokens."""

    weights: int
    kv_per_token: int
    scratch: int
    trained_context: int
    per_sequence: int = 0  # beside those of its tokens

    def kv(self, context: int) -> int:
        """Bytes of keys, values and states of one sequence."""
        return self.per_sequence + context * self.kv_per_token

    def total(self, context: int) -> int:
        return self.weights + self.scratch + self.kv(context)

    def longest(self, available: int) -> int:
        """The most tokens that fit so many bytes, no more than the model was trained for; 0 where it does not fit."""
        room = available - self.total(0)
        return max(0, min(self.trained_context, room // max(1, self.kv_per_token)))


def needs(file: GGUFFile, model: Model | None = None, layout: Layout | None = None) -> Needs:
    """From the header alone; without a ``layout`` all keys and values are kept as they are.

    Raises what ``registry.build`` raises.
    """
    outline = model or build(file, Outline)
    shapes, config = outline.kv_shapes, Config.from_gguf(file)
    widest = max(info.shape[-2] for info in file.tensors.values() if len(info.shape) > 1 and info.name not in UNUSED)
    vocabulary = file.tensors["token_embd.weight"].rows
    return Needs(
        weights=sum(ops.prepared_bytes(info.codec, math.prod(info.shape)) for info in file.tensors.values()),
        kv_per_token=layout.token_bytes(shapes) if layout else sum(shape.bytes_per_token() for shape in shapes),
        per_sequence=sum(shape.bytes_per_sequence() for shape in shapes)
        + (layout.exact_bytes(shapes, SCRATCH_ROWS) if layout else 0),
        scratch=4 * (6 * SCRATCH_ROWS * widest + 4 * vocabulary),
        trained_context=config.read("context_length", int),
    )


def available_memory() -> int:
    """Bytes that a model may take: free ones, and on a GPU no more than it recommends."""
    free = free_memory()
    if not ops.on_gpu:
        return free
    working_set = int(mx.device_info().get("max_recommended_working_set_size", free))
    return min(free, working_set - mx.get_active_memory())


def default_context(wanted: Needs, available: int) -> int:
    """Tokens: what the model was trained for, at most 32,768, and no more than a quarter of the memory holds."""
    held = available // 4 // max(1, wanted.kv_per_token)
    return min(wanted.trained_context, MOST_CONTEXT, max(LEAST_CONTEXT, held))


def checked_context(file: GGUFFile, wanted: Needs, context: int) -> int:
    """The context to load with; 0 asks for the default. Raises BadRequest or MemoryLimit with the numbers."""
    available = available_memory()
    if context > wanted.trained_context:
        raise BadRequest(
            f"context={context}: the model was trained for {wanted.trained_context} tokens; ask for at most that",
            "context",
        )
    chosen = context or default_context(wanted, available)
    check_fit(file.path.name, wanted.weights, wanted.total(chosen), chosen, available)
    return chosen


def check_fit(name: str, weights: int, total: int, context: int, available: int) -> None:
    """Raises MemoryLimit, with the numbers, where a model needs more bytes than there are."""
    if total > available:
        parts = f"{human_bytes(weights)} of weights, {human_bytes(total - weights)} for"
        fitting = largest_within(available - (total - weights))
        advice = f", such as {fitting.name}" if fitting and fitting.bytes < weights else ""
        raise MemoryLimit(
            f"{name} needs {human_bytes(total)} ({parts} {context} tokens of context); "
            f"{human_bytes(available)} are free: take a smaller model{advice}, or a smaller context",
            total,
            available,
        )


def obstacle(file: GGUFFile) -> str | None:
    """Why this file's weights do not fit the memory, or None; for a file that ``registry.unsupported`` lets pass."""
    try:
        checked_context(file, needs(file), 0)
    except MemoryLimit as error:
        return str(error)
    return None
