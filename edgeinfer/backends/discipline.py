"""The rules of the seam, checked in one place, and what the backends share that keep their tokens on the host."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.backends.base import Chunk, ModelInfo, Tokens
from edgeinfer.errors import BadRequest, ContextLimit, EngineClosed


class Slot:
    """The tokens of one sequence: kept ones, and those of a step that waits for its accept.

    ``stored`` counts the kept tokens that the model's memory really holds: all of them, or fewer where they must be
    computed anew.
    """

    __slots__ = ("id", "pending", "stored", "tokens")

    def __init__(self, id: int, tokens: array[int], stored: int) -> None:  # noqa: A002
        self.id = id
        self.tokens = tokens
        self.stored = stored
        self.pending: array[int] | None = None

    def shared(self, tokens: array[int]) -> int:
        """How many of the stored tokens are the first ones of ``tokens``."""
        count = min(self.stored, len(tokens))
        if not count:
            return 0
        different = np.flatnonzero(np.frombuffer(self.tokens, np.intc, count) != np.frombuffer(tokens, np.intc, count))
        return int(different[0]) if different.size else count


class TrackedSequence:
    """A sequence that knows when it may be used; the backends add what remembering and forgetting mean."""

    __slots__ = ("closed", "owner", "slot")

    def __init__(self, owner: Any, slot: Slot) -> None:
        self.owner = owner  # the backend; its ``closed`` says whether it still runs
        self.slot = slot
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.slot.tokens)

    @property
    def nbytes(self) -> int:
        """Of the keys and values that are stored."""
        return int(self.slot.stored * self.owner.info.kv_bytes_per_token)

    @property
    def pending(self) -> array[int] | None:
        """The tokens of a step that waits for its accept."""
        return self.slot.pending

    def take(self, count: int) -> bool:
        """Moves the first ``count`` pending tokens to the kept ones; false when some were left behind."""
        self.check_usable()
        pending = self.slot.pending
        if pending is None:
            raise BadRequest("accept() without a step: call it once after each step", "count")
        if not 0 <= count <= len(pending):
            raise BadRequest(f"accept({count}): the last chunk held {len(pending)} tokens", "count")
        self.slot.tokens.extend(pending[:count])
        self.slot.pending = None
        return count == len(pending)

    def check_forkable(self) -> None:
        self.check_usable()
        if self.slot.pending is not None:
            raise BadRequest("fork() between a step and its accept(): accept first")

    def check_usable(self) -> None:
        check_running(self.owner.closed)
        if self.closed:
            raise BadRequest("the sequence is closed: open another one")


def check_chunks(owner: object, info: ModelInfo, chunks: Sequence[Chunk]) -> list[array[int]]:
    """The tokens of each chunk; raises BadRequest or ContextLimit before anything has changed."""
    check_states(owner, TrackedSequence, chunks)
    checked = [check_tokens(chunk.tokens, info.vocab_size) for chunk in chunks]
    for chunk, tokens in zip(chunks, checked, strict=True):
        check_length(info, chunk.state.length, len(tokens))
    return checked


def check_states(owner: object, kind: type[Any], chunks: Sequence[Chunk]) -> None:
    """Raises BadRequest unless each chunk has a sequence of its own, of ``owner``, which waits for no accept."""
    seen: set[int] = set()
    for chunk in chunks:
        state = chunk.state
        if not isinstance(state, kind) or state.owner is not owner:
            raise BadRequest("a chunk's sequence was opened by another backend")
        state.check_usable()
        if state.pending is not None:
            raise BadRequest("a step before the last one was accepted: call accept() once after each step")
        if id(state) in seen:
            raise BadRequest("two chunks of one sequence in a step: join them")
        if chunk.rows not in ("none", "last", "all"):
            raise BadRequest(f"rows={chunk.rows!r}: expected 'none', 'last' or 'all'", "rows")
        seen.add(id(state))


def check_length(info: ModelInfo, length: int, count: int) -> None:
    """Raises BadRequest for no new tokens, ContextLimit where ``count`` of them do not fit behind ``length``."""
    if not count:
        raise BadRequest("a chunk without tokens: expected at least one", "tokens")
    needed, context = length + count, info.context
    if needed > context:
        advice = "shorten the prompt or load with more context"
        raise ContextLimit(f"{needed} tokens do not fit the context of {context}; {advice}", needed, context)


def check_tokens(tokens: Tokens, vocab_size: int) -> array[int]:
    """Token ids as an array of C ints."""
    try:
        ids = array("i", tokens)
    except (TypeError, OverflowError) as error:
        raise BadRequest(f"tokens: expected a flat row of token ids ({error})", "tokens") from None
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        worst = min(ids) if min(ids) < 0 else max(ids)
        raise BadRequest(f"token {worst} is not in the vocabulary: expected 0 to {vocab_size - 1}", "tokens")
    return ids


def check_running(closed: bool) -> None:
    if closed:
        raise EngineClosed("the backend is closed: load the model again")
