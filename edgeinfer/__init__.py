"""A local LLM runtime for Apple Silicon and edge machines.

``llm = edgeinfer.load("smollm2-135m")`` and then ``llm.generate``, ``llm.chat``, ``llm.stream``. Importing this
package loads neither MLX nor numpy: each name is resolved when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.batch import BatchPlan as BatchPlan
    from edgeinfer.batch import BatchProgress as BatchProgress
    from edgeinfer.batch import BatchResult as BatchResult
    from edgeinfer.batch import plan_batch as plan_batch
    from edgeinfer.batch import run_batch as run_batch
    from edgeinfer.errors import EdgeInferError as EdgeInferError
    from edgeinfer.llm import LLM as LLM
    from edgeinfer.llm import load as load
    from edgeinfer.types import Finished as Finished
    from edgeinfer.types import Message as Message
    from edgeinfer.types import ReasoningDelta as ReasoningDelta
    from edgeinfer.types import Reply as Reply
    from edgeinfer.types import SamplingParams as SamplingParams
    from edgeinfer.types import TextDelta as TextDelta
    from edgeinfer.types import Timings as Timings
    from edgeinfer.types import TokenLogprob as TokenLogprob
    from edgeinfer.types import ToolCall as ToolCall
    from edgeinfer.types import ToolCallDelta as ToolCallDelta
    from edgeinfer.types import Usage as Usage

__version__ = "0.1.0"

_HOMES = {
    "edgeinfer.batch": ("BatchPlan", "BatchProgress", "BatchResult", "plan_batch", "run_batch"),
    "edgeinfer.errors": ("EdgeInferError",),
    "edgeinfer.llm": ("LLM", "load"),
    "edgeinfer.types": (
        "Finished", "Message", "ReasoningDelta", "Reply", "SamplingParams", "TextDelta", "Timings", "TokenLogprob",
        "ToolCall", "ToolCallDelta", "Usage",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'edgeinfer' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
