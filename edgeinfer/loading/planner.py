"""What a model would take on this machine, part by part and for each format of keys and values, from its header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.cache.formats import FORMATS
from edgeinfer.cache.layout import Layout
from edgeinfer.errors import BadRequest
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading.fit import Needs, available_memory, check_fit, default_context, needs
from edgeinfer.loading.loader import kv_policy
from edgeinfer.loading.registry import build
from edgeinfer.nn.tensors import Outline

OURS = tuple(name for name, form in FORMATS.items() if form.exact or any(form.widths))


@dataclass(frozen=True, slots=True)
class FormatNeeds:
    """Keys and values of one conversation in one format, in bytes. ``longest``: tokens that would fit, 0: none."""

    format: str
    kv: int
    per_token: int
    total: int
    longest: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of a model with ``context`` tokens, and what this machine can give. ``formats`` holds ``kv`` too."""

    name: str
    context: int
    trained_context: int
    kv: str
    reason: str
    weights: int
    scratch: int
    available: int
    formats: Mapping[str, FormatNeeds]

    @property
    def total(self) -> int:
        return self.formats[self.kv].total

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    def check(self) -> None:
        """Raises MemoryLimit where loading would: with the numbers."""
        chosen = self.formats[self.kv]
        check_fit(self.name, self.weights, chosen.total, self.context, self.available)


def plan(file: GGUFFile, name: str = "", context: int = 0, kv: str = "auto") -> MemoryPlan:
    """Reads no weights. ``context`` 0 takes what loading would. Raises BadRequest, or what building raises."""
    outline = build(file, Outline)
    shapes = outline.kv_shapes
    wanted = kv_policy(file, outline, kv)
    by_format: dict[str, Needs] = {}
    for each in dict.fromkeys((*OURS, wanted.name)):
        policy = wanted if each == wanted.name else kv_policy(file, outline, each)
        by_format[each] = needs(file, outline, Layout.of(policy, shapes))
    chosen, available = by_format[wanted.name], available_memory()
    if context > chosen.trained_context:
        raise BadRequest(
            f"context={context}: the model was trained for {chosen.trained_context} tokens; ask for at most that",
            "context",
        )
    tokens = context or default_context(chosen, available)
    return MemoryPlan(
        name=name or file.path.name,
        context=tokens,
        trained_context=chosen.trained_context,
        kv=wanted.name,
        reason=wanted.reason,
        weights=chosen.weights,
        scratch=chosen.scratch,
        available=available,
        formats={
            each: FormatNeeds(each, one.kv(tokens), one.kv_per_token, one.total(tokens), one.longest(available))
            for each, one in by_format.items()
        },
    )
