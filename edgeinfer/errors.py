"""The exceptions that edgeinfer raises on purpose, drawn once.

EdgeInferError                 exit 1, our fault
├── BadInput                   exit 2, what was asked for
│   ├── BadRequest             a parameter, a message list, a flag; carries ``parameter``
│   ├── TemplateFailed         a chat template that does not render
│   ├── BackendUnavailable     carries the command that would install it
│   └── ModelError             the files; carries ``path``
│       ├── ModelNotFound      carries the nearest names
│       ├── CorruptFile        carries ``field`` and ``offset``
│       └── UnsupportedModel   carries ``setting`` and ``value``
│           └── WrongTensors
├── LimitExceeded              exit 4, it will not fit; carries ``needed`` and ``available``
│   ├── MemoryLimit
│   ├── DiskLimit
│   └── ContextLimit
├── NetworkFailed              exit 5
├── NotSaved                   exit 4, the disk took no more of a conversation
├── EngineClosed               exit 1, used after close()
└── EngineCrashed              exit 1, its process ended or hung; carries ``signal``

A message says what was found, what was expected and what to do, on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EdgeInferError(Exception):
    """Anything that edgeinfer refuses or fails to do. ``exit_code`` is what the command line returns."""

    exit_code = 1


class BadInput(EdgeInferError):
    exit_code = 2


class BadRequest(BadInput):
    """A parameter out of range, or a request that contradicts itself."""

    def __init__(self, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter


class TemplateFailed(BadInput):
    """A chat template that does not parse, raises, or exceeds a limit."""


class BackendUnavailable(BadInput):
    """A backend that is not installed here, or cannot run this model."""

    def __init__(self, message: str, install: str = "") -> None:
        super().__init__(message)
        self.install = install


class ModelError(BadInput):
    """Something about a model's files."""

    def __init__(self, message: str, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = Path(path) if path is not None else None


class ModelNotFound(ModelError):
    """No model goes by this name; ``nearest`` holds names that look like it."""

    def __init__(self, message: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nearest = tuple(nearest)


class CorruptFile(ModelError):
    """A file that breaks its own format."""

    def __init__(self, path: Path | str, field: str, offset: int | None, problem: str) -> None:
        """``field`` is the header field, metadata key or tensor; ``offset`` the byte where it lies."""
        place = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{Path(path).name}: {field}{place}: {problem}", path)
        self.field = field
        self.offset = offset


class UnsupportedModel(ModelError):
    """A valid file that asks for something edgeinfer does not do."""

    def __init__(
        self,
        message: str,
        path: Path | str | None = None,
        setting: str = "",
        value: object = None,
    ) -> None:
        super().__init__(message, path)
        self.setting = setting
        self.value = value


class WrongTensors(UnsupportedModel):
    """Tensors that the model's own architecture needs are missing or of another shape."""


class LimitExceeded(EdgeInferError):
    """It will not fit: ``needed`` and ``available`` in bytes, or in tokens for a context."""

    exit_code = 4

    def __init__(self, message: str, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class MemoryLimit(LimitExceeded):
    pass


class DiskLimit(LimitExceeded):
    pass


class ContextLimit(LimitExceeded):
    pass


class NetworkFailed(EdgeInferError):
    """A download or an index that did not answer as it should."""

    exit_code = 5


class NotSaved(EdgeInferError):
    """What was written could not be kept: a full disk, a lost folder. It may be tried again."""

    exit_code = 4


class EngineClosed(EdgeInferError):
    """The model was used after ``close()``."""


class EngineCrashed(EdgeInferError):
    """The process that ran the model is gone, and with it what it was answering. The next request starts another."""

    def __init__(self, message: str, signal: int = 0) -> None:
        """``signal`` is the number of the signal that ended it, or 0."""
        super().__init__(message)
        self.signal = signal
