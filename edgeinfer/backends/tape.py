"""A backend without a model: it plays tokens from a tape, at the times the tape says.

Everything above the seam can be tested on it in milliseconds: stopping, characters split over tokens, cancelling, an
app, a batch. It keeps to every rule of the seam, reuses prefixes, and fails where it is told to.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Chunk, ModelInfo
from edgeinfer.backends.discipline import Slot, TrackedSequence, check_chunks, check_running, check_tokens

Tape: TypeAlias = Sequence[int] | Callable[[Sequence[int]], int]
"""The tokens of the reply, or a function from all tokens so far to the next one."""

PEAK = 40.0  # the logit of the tape's token; all others are noise around 0


class TapeSequence(TrackedSequence):
    """Tokens, and where in them the prompt ends."""

    __slots__ = ("prompt",)
    owner: TapeBackend

    def __init__(self, owner: TapeBackend, slot: Slot, prompt: int | None = None) -> None:
        super().__init__(owner, slot)
        self.prompt = prompt  # its length, once the first row was asked for

    def accept(self, count: int) -> None:
        self.take(count)
        self.slot.stored = len(self.slot.tokens)

    def fork(self) -> TapeSequence:
        self.check_forkable()
        return self.owner.opened(self.slot.tokens[:], self.prompt)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.owner.release(self.slot)


class TapeBackend:
    """Plays ``tape`` for every sequence.

    tape: the reply to any prompt, ``end`` following for good; or a function of the tokens so far, its own prompt
        included; or None for logits that are noise, but noise that depends on every token so far.
    delays: seconds that a step takes; a sequence gives one for each step, the last one for all that follow.
    faults: by the number of the step, from 0: an exception to raise before anything has changed, or a number (such as
        NaN) to fill the logits with.
    prefixes: closed sequences to keep for reuse.

    A prompt ends with the chunk that first asks for a row. ``steps``, ``tokens`` and ``rows`` count what was computed;
    ``sizes`` lists how many chunks each step had.
    """

    def __init__(
        self,
        tape: Tape | None = None,
        *,
        vocab_size: int = 64,
        context: int = 512,
        end: int = 0,
        delays: float | Sequence[float] = 0.0,
        faults: Mapping[int, Exception | float] | None = None,
        prefixes: int = 16,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.info = ModelInfo(
            name="tape",
            architecture="tape",
            backend="tape",
            device="cpu",
            quantization="none",
            vocab_size=vocab_size,
            context=context,
            parameters=0,
            weight_bytes=0,
            kv_bytes_per_token=4,
        )
        self.steps = self.tokens = self.rows = 0
        self.sizes: list[int] = []
        self._tape, self._end = tape, end
        self._delays = [delays] if isinstance(delays, (int, float)) else list(delays)
        self._faults = dict(faults or {})
        self._prefixes = prefixes
        self._sleep = sleep
        self._next_id = 0
        self._open: dict[int, Slot] = {}
        self._kept: OrderedDict[int, Slot] = OrderedDict()
        self.closed = False

    @property
    def open_sequences(self) -> int:
        return len(self._open)

    def open(self, tokens: Sequence[int] = ()) -> TapeSequence:
        check_running(self.closed)
        wanted = check_tokens(tokens, self.info.vocab_size)[:-1]
        length = max((slot.shared(wanted) for slot in (*self._open.values(), *self._kept.values())), default=0)
        return self.opened(wanted[:length], None)

    def step(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """float32 logits (rows, V) for each chunk."""
        check_running(self.closed)
        tokens = check_chunks(self, self.info, chunks)
        number, self.steps = self.steps, self.steps + 1
        self.sizes.append(len(chunks))
        if self._delays and (delay := self._delays[min(number, len(self._delays) - 1)]):
            self._sleep(delay)
        fault = self._faults.get(number)
        if isinstance(fault, Exception):
            raise fault
        logits = [self._rows(chunk, new) for chunk, new in zip(chunks, tokens, strict=True)]
        for chunk, new, rows in zip(chunks, tokens, logits, strict=True):
            chunk.state.slot.pending = new
            self.tokens += len(new)
            self.rows += len(rows)
            if fault is not None:
                rows.fill(fault)
        return logits

    def forget(self) -> None:
        self._kept.clear()

    def close(self) -> None:
        self.closed = True
        self._open.clear()
        self._kept.clear()

    def opened(self, tokens: array[int], prompt: int | None) -> TapeSequence:
        """A new sequence that holds ``tokens``."""
        slot = Slot(self._next_id, tokens, len(tokens))
        self._next_id += 1
        self._open[slot.id] = slot
        return TapeSequence(self, slot, prompt)

    def release(self, slot: Slot) -> None:
        """Keeps a closed sequence for its prefix."""
        if self.closed:
            return
        self._kept[slot.id] = self._open.pop(slot.id)
        while len(self._kept) > self._prefixes:
            self._kept.popitem(last=False)

    def _rows(self, chunk: Chunk, new: array[int]) -> NDArray[np.float32]:
        state: TapeSequence = chunk.state
        count = {"none": 0, "last": 1, "all": len(new)}[chunk.rows]
        rows = np.empty((count, self.info.vocab_size), np.float32)
        history = [*state.slot.tokens, *new]
        if count and state.prompt is None:
            state.prompt = len(history)
        for index in range(count):
            length = len(history) - count + index + 1
            rows[index] = _noise(history[:length], self.info.vocab_size)
            if self._tape is not None:
                rows[index, self._next(history, length, state.prompt)] = PEAK
        return rows

    def _next(self, history: list[int], length: int, prompt: int | None) -> int:
        """The token that follows the first ``length`` of ``history``: the prompt's own, then the tape's."""
        if callable(self._tape):
            return self._tape(history[:length])
        place = length - (prompt or 0)
        if place < 0:
            return history[length]
        return self._tape[place] if self._tape is not None and place < len(self._tape) else self._end


def _noise(tokens: list[int], vocab_size: int) -> NDArray[np.float32]:
    """Normal noise (V,) whose seed is a hash of all tokens."""
    digest = blake2b(array("i", tokens).tobytes(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    return generator.standard_normal(vocab_size, dtype=np.float32)
