"""llama.cpp as a subject of the bench: one sequence, exactly the context that is needed, its logits left in place.

Nothing of our own backend stands between: this is the baseline. Its cache for sliding windows keeps the window alone,
as llama.cpp's own commands have it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgeinfer.backends.llama_library import Library, library, load_failure
from edgeinfer.bench.plan import MOST_ROWS, WARM_UP, Kind
from edgeinfer.bench.subject import random_tokens
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.bench.worker import Job

TOKENIZER_INCLUDED = True  # llama.cpp reads it with the weights
_BATCH = 512  # tokens a decode: llama.cpp's default for a physical batch


def prepare() -> None:
    """Imports what loading needs."""
    library()


def load(job: Job) -> LlamaSubject:
    """llama.cpp with the model of a job. Raises what ``load_failure`` makes of its reasons."""
    lib = library()
    params = lib.api.llama_model_default_params()
    params.n_gpu_layers = 0 if job.cpu else -1
    lib.log.clear()
    model: int | None = lib.api.llama_model_load_from_file(os.fsencode(job.model), params)
    if not model:
        raise load_failure(job.model, lib.log.reason())
    return LlamaSubject(lib, model, job)


class LlamaSubject:
    """A model and its context. ``job.flash`` says whether attention is fused."""

    kinds: ClassVar[tuple[Kind, ...]] = ("decode", "prefill", "rows")
    computes_depth: ClassVar[bool] = True

    def __init__(self, lib: Library, model: int, job: Job) -> None:
        self._lib, self._api, self._model = lib, lib.api, model
        self._context = self._new_context(job)
        self._memory = self._api.llama_get_memory(self._context)
        self._vocab_size: int = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(model))
        self._tokens = random_tokens(job.context, self._vocab_size)
        self._batch = self._api.llama_batch_init(_BATCH, 0, 1)
        for index in range(_BATCH):
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = 0
        self._length = self._held = 0

    def hold(self, depth: int) -> None:
        self._held = depth
        self._rewind()

    def decode(self, count: int) -> float:
        token = self._tokens[self._held]
        for _ in range(WARM_UP):
            token = self._next(token)
        started = time.perf_counter()
        for _ in range(count):
            token = self._next(token)
        seconds = time.perf_counter() - started
        self._rewind()
        return seconds

    def prefill(self, length: int) -> float:
        self._forget(0)
        started = time.perf_counter()
        self._feed(self._tokens[:length], wanted=1)
        return time.perf_counter() - started

    def verify(self, rows: int) -> float:
        tokens = self._tokens[self._held : self._held + rows]
        started = time.perf_counter()
        self._feed(tokens, wanted=rows)
        seconds = time.perf_counter() - started
        self._rewind()
        return seconds

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _new_context(self, job: Job) -> int:
        types = (self._api.LLAMA_FLASH_ATTN_TYPE_DISABLED, self._api.LLAMA_FLASH_ATTN_TYPE_ENABLED)
        params = self._api.llama_context_default_params()
        params.n_ctx = job.context
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = job.threads
        params.n_outputs_max, params.n_outputs_max_per_seq = MOST_ROWS, 0
        params.flash_attn_type = types[job.flash]
        params.swa_full = False
        context: int | None = self._api.llama_init_from_model(self._model, params)
        if not context:
            raise EdgeInferError(f"llama.cpp made no context of {job.context} tokens: {self._lib.log.reason()}")
        return context

    def _rewind(self) -> None:
        """Back to the depth that is held, by forgetting or by computing what is missing."""
        self._forget(min(self._length, self._held))
        self._feed(self._tokens[self._length : self._held], wanted=0)

    def _forget(self, length: int) -> None:
        if length < self._length and not self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
            self._api.llama_memory_seq_rm(self._memory, 0, -1, -1)
            length = 0
        self._length = length

    def _next(self, token: int) -> int:
        self._feed([token], wanted=1)
        logits = np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, -1), (self._vocab_size,))
        return int(logits.argmax())

    def _feed(self, tokens: Sequence[int], wanted: int) -> None:
        """Appends tokens; the last ``wanted`` get logits. llama_decode returns when they are computed."""
        batch: Any = self._batch
        for start in range(0, len(tokens), _BATCH):
            piece = tokens[start : start + _BATCH]
            for index, token in enumerate(piece):
                batch.token[index] = token
                batch.pos[index] = self._length + index
                batch.logits[index] = start + index >= len(tokens) - wanted
            batch.n_tokens = len(piece)
            self._lib.log.clear()
            if status := self._api.llama_decode(self._context, batch):
                raise EdgeInferError(f"llama.cpp could not decode (status {status}): {self._lib.log.reason()}")
            self._length += len(piece)
        self._api.llama_synchronize(self._context)
