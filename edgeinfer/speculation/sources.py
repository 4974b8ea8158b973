"""Which drafters a loaded model has: those of every model, and those that need more than its text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from edgeinfer.backends.base import Backend
from edgeinfer.settings import Settings
from edgeinfer.speculation.certainty import Learned
from edgeinfer.speculation.diffusion import DiffusionDrafter
from edgeinfer.speculation.draft_model import ModelDrafter
from edgeinfer.speculation.drafter import Text
from edgeinfer.speculation.mtp import Memories, MTPDrafter
from edgeinfer.speculation.speculation import Shared, Source

SKIPPED_SHARE = 0.5
"""Of the layers, that layer_skip leaves out."""
_OUTPUT_SHARE = 0.1  # of a step, that logits take before that is measured


def shared_by(settings: Settings, open_draft: Callable[[], Backend] | None = None) -> Callable[[Backend], Shared]:
    """Makes a model's ``Shared``, which keeps its measurements where the user's settings say.

    ``open_draft`` loads a second model that drafts; it is called on the engine's thread.
    """

    def share(backend: Backend) -> Shared:
        more = mtp(backend) | diffusion(backend) | layer_skip(backend)
        if open_draft is not None:
            more |= draft_model(open_draft(), backend)
        return Shared(backend.info, settings.paths.measured, settings.keep_outputs, more)

    return share


def mtp(backend: Backend) -> dict[str, Source]:
    """The model's own head for further tokens, where its file holds one."""
    head = getattr(backend, "head", None)
    if head is None:
        return {}
    confidence = {greedy: Learned() for greedy in (True, False)}
    memories = Memories()

    def make(text: Text) -> MTPDrafter:
        return MTPDrafter(head, text, confidence[text.temperature == 0], memories)

    share = 1.5 / getattr(backend, "layers", 1)
    return {"mtp": Source(make, (share + _OUTPUT_SHARE, share + _OUTPUT_SHARE), confidence=confidence)}


def diffusion(backend: Backend) -> dict[str, Source]:
    """The model itself, where it was trained to fill in a block at once."""
    if getattr(backend, "block", None) is None:
        return {}
    confidence = {greedy: Learned() for greedy in (True, False)}

    def make(text: Text) -> DiffusionDrafter:
        return DiffusionDrafter(backend, text, confidence[text.temperature == 0])

    return {"diffusion": Source(make, (1.05, 0.05), confidence=confidence)}


def draft_model(draft: Backend, backend: Backend) -> dict[str, Source]:
    """The sources of a second model, which is closed with the first."""
    share = draft.info.weight_bytes / max(1, backend.info.weight_bytes)
    return {
        "draft_model": _model_source("draft_model", lambda: draft, share, close=draft.close),
        "draft_model_sampled": _model_source(
            "draft_model_sampled", lambda: draft, share, sampled=True, automatic=False
        ),
    }


def layer_skip(backend: Backend) -> dict[str, Source]:
    """The model's first layers with its own head, where the backend can run them alone. Never at work unasked."""
    shallow: Callable[[int], Backend] | None = getattr(backend, "shallow", None)
    layers: int = getattr(backend, "layers", 0)
    kept = round(layers * (1 - SKIPPED_SHARE))
    if shallow is None or not 0 < kept < layers:
        return {}
    return {"layer_skip": _model_source("layer_skip", cache(lambda: shallow(kept)), kept / layers, automatic=False)}


def _model_source(
    name: str,
    open_backend: Callable[[], Backend],
    share: float,
    *,
    sampled: bool = False,
    automatic: bool = True,
    close: Callable[[], Any] = lambda: None,
) -> Source:
    confidence = {greedy: Learned() for greedy in (True, False)}

    def make(text: Text) -> ModelDrafter:
        return ModelDrafter(name, open_backend(), text, confidence[text.temperature == 0], sampled=sampled)

    return Source(make, (1.2 * share, share), automatic, close, confidence)
