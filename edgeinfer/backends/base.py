"""The seam: a backend turns tokens into logits for a ragged batch of sequences.

Prefill, decode, verifying a draft and batching are the same call. They differ in how many tokens a chunk holds and in
which rows of logits are wanted. Below this seam nothing knows of text; above it nothing knows of the engine.
A backend and its sequences are used from one thread, the one that made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Rows: TypeAlias = Literal["none", "last", "all"]
Logits: TypeAlias = Any
"""(rows, V) float: an ``mx.array``, perhaps not computed yet, or a numpy array. (0, V) for ``none``."""
Tokens: TypeAlias = Sequence[int] | Any
"""Token ids; the MLX backend also takes a (L,) ``mx.array`` whose values the host has not read yet."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the layers above need to know of a loaded model."""

    name: str
    architecture: str
    backend: str  # "mlx", "llama.cpp", "tape"
    device: str  # "cpu", "metal", "cuda", …
    quantization: str  # "Q4_1", "Q4_K_M", …
    vocab_size: int
    context: int  # tokens a sequence may hold
    parameters: int
    weight_bytes: int  # in memory
    kv_bytes_per_token: int  # among many tokens
    kv: str = "exact"  # the format of keys and values
    kv_reason: str = ""  # why this one
    kv_exact_bytes: int = 0  # of a token, were all kept as they are; 0 where it is not known
    lazy: bool = False  # logits and tokens may stay on the device: decoding can be pipelined
    kv_budget: int = 0  # bytes that the keys and values of all sequences may take together; 0: as they come
    kernels: str = ""  # which code multiplies, and of which version
    row_invariant: bool = False  # the logits of a token are the same, bit for bit, alone and in any batch
    drafters: tuple[str, ...] = ()  # that a request may name; the engine's, as they hang on more than the model


class SequenceState(Protocol):
    """What the model remembers of one sequence."""

    @property
    def length(self) -> int:
        """Tokens that are kept."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds, shared with others or not."""

    def accept(self, count: int) -> None:
        """Of the last chunk, keeps the first ``count`` tokens and forgets the rest. Once after each step."""

    def fork(self) -> SequenceState:
        """A copy that shares memory until one side writes. Not between a step and its accept."""

    def close(self) -> None:
        """Gives the sequence up; its prefix may stay in memory for reuse. Twice is once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to append to a sequence, at least one, and the rows of logits wanted for them."""

    state: Any  # a SequenceState of the same backend
    tokens: Tokens
    rows: Rows = "last"


class Backend(Protocol):
    info: ModelInfo

    def open(self, tokens: Sequence[int] = ()) -> Any:
        """A sequence that already holds the longest stored prefix of ``tokens``.

        Its ``length`` says how much: at most ``len(tokens) - 1``, so that the last row is always computed anew.
        """

    def step(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """One forward pass over every chunk, each of another sequence; logits in the order of the chunks.

        Raises ContextLimit when a chunk does not fit ``info.context``; then no sequence has changed.
        """

    def forget(self) -> None:
        """Lets go of what is kept of closed sequences: the next one finds what the first one found."""

    def close(self) -> None:
        """Frees weights and caches. Twice is once."""
