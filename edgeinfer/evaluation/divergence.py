"""A model against a reference: another file, another backend, or another format of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import BadRequest
from edgeinfer.evaluation.formats import checked_formats
from edgeinfer.evaluation.lockstep import Side
from edgeinfer.evaluation.measures import divergences, scored_from
from edgeinfer.evaluation.model import EvaluatedModel
from edgeinfer.evaluation.rounded import RoundedModel
from edgeinfer.evaluation.scores import Divergence


@dataclass(frozen=True, slots=True)
class Reference:
    """Exactly one of: a path, a backend (empty: none), and two formats, the reference's and the other's."""

    path: Path | None = None
    backend: str = ""
    kv: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        if sum((self.path is not None, bool(self.backend), any(self.kv))) == 1:
            return
        if self.path is not None and self.backend and not any(self.kv):
            return
        raise BadRequest(
            "compare with one thing: --against MODEL, --against-backend NAME, or --kv-a and --kv-b", "against"
        )


def divergence_from(
    reference: Reference,
    model: EvaluatedModel,
    windows: Sequence[Sequence[int]],
    backend: str = "auto",
    threads: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Divergence:
    """KL(reference || model) and its kin over the second half of each window. Raises what loading raises."""
    first, context = scored_from(windows), len(windows[0])
    with ExitStack() as closing:
        if any(reference.kv):
            a, b = checked_formats([name or "exact" for name in reference.kv], distinct=False)
            rounded = RoundedModel(model.path, a, context, threads)
            closing.callback(rounded.backend.close)
            sides = [rounded.side(a), rounded.side(b)]
        else:
            other = EvaluatedModel(reference.path or model.path, model.tokenizer)
            sides = []
            for name, each, choice in (("reference", other, reference.backend or backend), ("model", model, backend)):
                loaded = each.load(choice, context, threads)
                closing.callback(loaded.close)
                sides.append(Side(name, loaded))
        return divergences(sides[0], sides[1:], windows, first, on_progress)[0]
