"""A model file as evaluations need it: its tokenizer, and ways to compute with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends import choose
from edgeinfer.backends.base import Backend
from edgeinfer.converted.opening import open_model
from edgeinfer.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A file and its tokenizer; backends are loaded when they are asked for, and belong to whoever asked."""

    path: Path
    tokenizer: Tokenizer

    @classmethod
    def of(cls, path: Path) -> EvaluatedModel:
        """Raises what opening the file raises, or its tokenizer."""
        with open_model(path) as file:
            return cls(path, Tokenizer.from_gguf(file.metadata, file.path, file.field_offset))

    def load(self, backend: str = "auto", context: int = 0, threads: int = 0, kv: str = "exact") -> Backend:
        """``kv``: the format of keys and values, as a running cache has it. Raises what choosing and loading raise."""
        with open_model(self.path) as file:
            choice = choose(file, backend)
        return choice.load(self.path, context, threads, kv)
