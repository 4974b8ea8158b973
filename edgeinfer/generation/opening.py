"""What an engine is opened with: plain data, so that a process of its own can be told the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from edgeinfer.backends import Choice, open_draft
from edgeinfer.generation.engine import Engine
from edgeinfer.generation.heartbeat import Pulse
from edgeinfer.settings import load_settings
from edgeinfer.speculation.sources import shared_by

if TYPE_CHECKING:
    from edgeinfer.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True, slots=True)
class Opening:
    """draft: path and backend of a second model that drafts, or nothing."""

    path: str
    backend: str
    context: int = 0
    threads: int = 0
    kv: str = "exact"
    draft: tuple[str, str] | None = None
    deterministic: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(**{**values, "draft": values["draft"] and tuple(values["draft"])})

    def engine(self, tokenizer: Tokenizer, pulse: Pulse | None = None) -> Engine:
        """Loads the model on the engine's thread, and waits for it."""
        settings = load_settings()
        kept = settings.paths.kept if settings.keep_kv else None
        choice, path = Choice(self.backend, ""), Path(self.path)
        speculate = shared_by(settings, open_draft(self.threads, *self.draft) if self.draft else None)
        return Engine(
            lambda: choice.load(path, self.context, self.threads, self.kv, kept),
            tokenizer,
            speculate,
            pulse,
            self.deterministic,
        )
