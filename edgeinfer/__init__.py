"""A local LLM runtime for Apple Silicon and edge machines.

``llm = edgeinfer.load("smollm2-135m")`` and then ``llm.generate``, ``llm.chat``, ``llm.stream``. Importing this
package loads neither MLX nor numpy: each name is resolved when it is first used.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "LLM": "edgeinfer.llm",
    "load": "edgeinfer.llm",
    "SamplingParams": "edgeinfer.types",
    "Message": "edgeinfer.types",
    "Reply": "edgeinfer.types",
    "TextDelta": "edgeinfer.types",
    "ReasoningDelta": "edgeinfer.types",
    "Finished": "edgeinfer.types",
    "Usage": "edgeinfer.types",
    "Timings": "edgeinfer.types",
    "TokenLogprob": "edgeinfer.types",
    "EdgeInferError": "edgeinfer.errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgeinfer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
