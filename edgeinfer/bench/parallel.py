"""llama.cpp's own parallel decoding: several sequences in one context, a row of the batch for each.

Written against its C interface alone, as its own ``parallel`` example works: who is done makes room for who waits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.llama_library import library, load_failure
from edgeinfer.errors import EdgeInferError

_BATCH = 512  # tokens a decode: llama.cpp's default for a physical batch


@dataclass(slots=True)
class _Slot:
    """A sequence: ``pending`` tokens are in no batch yet, ``left`` are still to be made, ``row`` holds its logits."""

    number: int
    pending: list[int]
    left: int
    length: int = 0
    row: int = -1


class ParallelLlama:
    """A model with ``slots`` sequences. ``close()`` it."""

    def __init__(self, path: Path, threads: int, slots: int, tokens_a_slot: int) -> None:
        self._lib = library()
        self._api = self._lib.api
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = 0
        self._lib.log.clear()
        self._model: int | None = self._api.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise load_failure(path, self._lib.log.reason())
        context = self._api.llama_context_default_params()
        context.n_ctx, context.n_seq_max = slots * tokens_a_slot, slots
        context.n_batch = context.n_ubatch = _BATCH
        context.n_threads = context.n_threads_batch = threads
        self._context: int | None = self._api.llama_init_from_model(self._model, context)
        if not self._context:
            self._api.llama_model_free(self._model)
            raise EdgeInferError(f"llama.cpp made no context for {slots} sequences: {self._lib.log.reason()}")
        self._memory = self._api.llama_get_memory(self._context)
        self._vocab_size: int = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        self._batch: Any = self._api.llama_batch_init(_BATCH, 0, 1)
        self._slots = slots

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """The likeliest ``tokens`` tokens after each prompt."""
        answers: list[list[int]] = [[] for _ in prompts]
        waiting = deque(range(len(prompts)))
        free = deque(range(self._slots))
        running: dict[int, _Slot] = {}  # by prompt
        while waiting or running:
            while waiting and free:
                which = waiting.popleft()
                running[which] = _Slot(free.popleft(), list(prompts[which]), tokens)
            self._step(list(running.values()))
            for which, slot in list(running.items()):
                if slot.row < 0:
                    continue
                token = self._likeliest(slot.row)
                answers[which].append(token)
                slot.left, slot.pending = slot.left - 1, [token]
                if not slot.left:
                    self._api.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
                    free.append(slot.number)
                    del running[which]
        return answers

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _step(self, slots: Sequence[_Slot]) -> None:
        """One decode: a token of each sequence that makes some, and prompts as far as there is room."""
        batch, count = self._batch, 0
        for slot in sorted(slots, key=lambda slot: len(slot.pending)):
            taken, slot.pending = slot.pending[: _BATCH - count], slot.pending[_BATCH - count :]
            slot.row = count + len(taken) - 1 if taken and not slot.pending else -1
            for place, token in enumerate(taken, start=count):
                batch.token[place] = token
                batch.pos[place] = slot.length + place - count
                batch.n_seq_id[place] = 1
                batch.seq_id[place][0] = slot.number
                batch.logits[place] = place == slot.row
            slot.length += len(taken)
            count += len(taken)
        batch.n_tokens = count
        self._lib.log.clear()
        if status := self._api.llama_decode(self._context, batch):
            raise EdgeInferError(f"llama.cpp could not decode (status {status}): {self._lib.log.reason()}")

    def _likeliest(self, row: int) -> int:
        logits = np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, row), (self._vocab_size,))
        return int(logits.argmax())
