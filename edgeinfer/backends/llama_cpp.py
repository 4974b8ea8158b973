"""The llama.cpp backend: its C functions behind the seam, through llama-cpp-python's low-level API.

All sequences share one unified KV cache: twice ``info.context`` cells and at least 8192 where memory is plenty, so that
one conversation may fill its context while others, and closed ones kept for their prefix, fill the rest. Keys and
values are float16; llama.cpp chooses flash attention where it can.

llama.cpp forgets the end of a sequence exactly (``llama_memory_seq_rm``) but for two cases: a recurrent state has no
past, and a sliding-window layer gives cells away that have left the window. Then the sequence leaves the cache
altogether and the next step computes its kept tokens anew, in the same decode as the new ones. The same happens to
sequences that are not part of a step when the cache is full, after those that are closed.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from edgeinfer.backends.base import Chunk, ModelInfo
from edgeinfer.backends.discipline import Slot, TrackedSequence, check_chunks, check_running, check_tokens
from edgeinfer.backends.llama_batch import Batch, runs
from edgeinfer.backends.llama_library import (
    INSTALL,
    INSTALL_CUDA,
    Library,
    gpu_offload,
    install_hint,
    installed,
    library,
    load_failure,
    nvidia_present,
)
from edgeinfer.backends.llama_plan import Plan, describe, plan
from edgeinfer.backends.llama_settings import FLOAT16, KV_SHARE, check_settings, kv_type
from edgeinfer.errors import ContextLimit, EdgeInferError, LimitExceeded
from edgeinfer.formats.gguf import open_gguf
from edgeinfer.formats.mapping import MappedFile
from edgeinfer.memory import hand_back_memory

__all__ = [
    "INSTALL",
    "INSTALL_CUDA",
    "LlamaCppBackend",
    "LlamaCppSequence",
    "gpu_offload",
    "install_hint",
    "installed",
    "nvidia_present",
]

_BATCH = 512  # tokens a decode; llama.cpp's own default for a physical batch
_LOGITS_BYTES = 64 << 20  # of one decode; the compute buffer is sized for the most rows it may have to give
_FLASH_ATTENTION = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
_NO_ROOM = 1  # llama_decode: no free cells, nothing has changed


class LlamaCppSequence(TrackedSequence):
    """One sequence id of llama.cpp."""

    __slots__ = ()
    owner: LlamaCppBackend

    def accept(self, count: int) -> None:
        if not self.take(count):
            self.owner.rewind(self.slot, len(self.slot.tokens))
        else:
            self.slot.stored = len(self.slot.tokens)

    def fork(self) -> LlamaCppSequence:
        self.check_forkable()
        return self.owner.fork(self.slot)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.owner.release(self.slot)


class LlamaCppBackend:
    """A model and its one context."""

    info: ModelInfo

    def __init__(
        self, lib: Library, model: int, context: int, info: ModelInfo, planned: Plan, files: Sequence[MappedFile]
    ) -> None:
        self.info = info
        self._api, self._log = lib.api, lib.log
        self._model, self._context = model, context
        self._memory = self._api.llama_get_memory(context)
        self._window: int = self._api.llama_model_n_swa(model)
        self._rewinds = not planned.recurrent
        self.cells: int = self._api.llama_n_ctx(context)
        capacity = self._api.llama_n_batch(context)  # a small cache makes it smaller
        self._batch = Batch(self._api, capacity, planned.outputs, planned.sequences)
        self._files = files  # llama.cpp reads its weights from the mapped file, at every step
        self._free = list(range(planned.sequences))[::-1]
        self._open: dict[int, Slot] = {}
        self._kept: OrderedDict[int, Slot] = OrderedDict()  # of closed sequences; the oldest first
        self.closed = False

    @classmethod
    def load(
        cls, path: Path, context: int = 0, threads: int = 0, gpu_layers: int = -1, kv: str = "exact"
    ) -> LlamaCppBackend:
        """Loads a GGUF file that our own reader accepts.

        ``context`` is in tokens; 0 takes what the model was trained for, at most 8192 and what memory holds.
        ``kv``: ``exact``, ``q8_0`` or ``q4_0``.
        ``threads`` 0 takes the physical cores, ``gpu_layers`` -1 as many layers as the GPU holds, 0 none.
        Raises BackendUnavailable, CorruptFile, UnsupportedModel, MemoryLimit, or BadRequest for ``context``.
        """
        stored_as = kv_type(kv)
        lib = library()
        with open_gguf(path) as file:
            check_settings(file)
            metadata, first = file.metadata, file.files[0]
            model = _load_model(lib, path, first, gpu_layers)
            with ExitStack() as undo:
                undo.callback(lib.api.llama_model_free, model)
                planned = plan(lib.api, model, metadata, path, context, _LOGITS_BYTES, _BATCH)
                while not (handle := _new_context(lib, model, planned, threads, stored_as)):
                    planned = planned.halved(path, lib.log.reason(), asked_for=context)
                info = _kept_as(stored_as, kv, describe(lib.api, model, metadata, path, planned, gpu_layers))
                undo.pop_all()
            return cls(lib, model, handle, info, planned, [MappedFile(part) for part in file.files])

    def open(self, tokens: Sequence[int] = ()) -> LlamaCppSequence:
        check_running(self.closed)
        wanted = check_tokens(tokens, self.info.vocab_size)[:-1]
        donor, length = self._longest_prefix(wanted)
        if donor is None:
            return self._opened(Slot(self._new_id(), array("i"), 0))
        if donor.id in self._kept:
            self._kept.move_to_end(donor.id)
            if length == donor.stored or (not self._free and len(self._kept) == 1):
                return self._adopted(self._kept.pop(donor.id), length)
        slot = Slot(self._new_id(), donor.tokens[:length], length)
        self._api.llama_memory_seq_cp(self._memory, donor.id, slot.id, 0, length)
        return self._opened(slot)

    def step(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """float32 logits (rows, V) for each chunk; one ``llama_decode`` up to 512 tokens, several beyond."""
        check_running(self.closed)
        if not chunks:
            return []
        for file in self._files:
            file.check_unchanged()
        tokens = check_chunks(self, self.info, chunks)
        slots: list[Slot] = [chunk.state.slot for chunk in chunks]
        rows = [{"none": 0, "last": 1, "all": len(new)}[chunk.rows] for chunk, new in zip(chunks, tokens, strict=True)]
        with ExitStack() as undo:
            for slot in slots:
                undo.callback(self.rewind, slot, slot.stored)
            logits = self._forward(slots, tokens, rows)
            undo.pop_all()
        for slot, new in zip(slots, tokens, strict=True):
            slot.pending = new
        return [logits[start:stop] for start, stop in pairwise(accumulate(rows, initial=0))]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._open.clear()
            self._kept.clear()
            for file in self._files:
                file.close()
            self._api.llama_free(self._context)
            self._api.llama_model_free(self._model)
            hand_back_memory()

    def forget(self) -> None:
        while self._evict():
            pass
        if not self._open:
            self._api.llama_memory_clear(self._memory, False)

    def rewind(self, slot: Slot, length: int) -> None:
        """Keeps the first ``length`` tokens of a sequence in the cache; none where a part cannot be forgotten."""
        slot.stored = length
        if not self._api.llama_memory_seq_rm(self._memory, slot.id, length, -1) or not self._intact(slot, length):
            self._api.llama_memory_seq_rm(self._memory, slot.id, -1, -1)
            slot.stored = 0

    def fork(self, slot: Slot) -> LlamaCppSequence:
        copy = Slot(self._new_id(), slot.tokens[:], slot.stored)
        self._api.llama_memory_seq_cp(self._memory, slot.id, copy.id, 0, -1)
        return self._opened(copy)

    def release(self, slot: Slot) -> None:
        """A closed sequence stays in the cache for its prefix, unless another one holds the same tokens."""
        if self.closed:
            return
        del self._open[slot.id]
        if slot.pending is not None:
            slot.pending = None
            self.rewind(slot, slot.stored)
        del slot.tokens[slot.stored :]
        tokens = slot.tokens[:]
        if not tokens:
            self._discard(slot)
            return
        if self._rewinds:
            if any(other.shared(tokens) == len(tokens) for other in (*self._open.values(), *self._kept.values())):
                self._discard(slot)
                return
            for other in [kept for kept in self._kept.values() if kept.shared(tokens) == kept.stored]:
                self._discard(self._kept.pop(other.id))
        self._kept[slot.id] = slot

    def _longest_prefix(self, wanted: array[int]) -> tuple[Slot | None, int]:
        best, length = None, 0
        for slot in (*self._open.values(), *self._kept.values()):
            shared = slot.shared(wanted)
            usable = self._intact(slot, shared) if self._rewinds else shared == slot.stored and slot.pending is None
            if shared > length and usable:
                best, length = slot, shared
        return best, length

    def _intact(self, slot: Slot, length: int) -> bool:
        """Whether every cell that a token at position ``length`` may look at is still there."""
        if not self._window or not length:
            return True
        first: int = self._api.llama_memory_seq_pos_min(self._memory, slot.id)
        return 0 <= first <= max(0, length - self._window)

    def _opened(self, slot: Slot) -> LlamaCppSequence:
        self._open[slot.id] = slot
        return LlamaCppSequence(self, slot)

    def _adopted(self, slot: Slot, length: int) -> LlamaCppSequence:
        self.rewind(slot, length)
        del slot.tokens[length:]
        return self._opened(slot)

    def _new_id(self) -> int:
        if not self._free and not self._evict():
            count = len(self._open)
            raise LimitExceeded(f"all {count} sequences are open; close one first", count + 1, count)
        return self._free.pop()

    def _evict(self) -> bool:
        """Gives up the closed sequence that was used longest ago; false without one."""
        if not self._kept:
            return False
        self._discard(self._kept.popitem(last=False)[1])
        return True

    def _discard(self, slot: Slot) -> None:
        self._api.llama_memory_seq_rm(self._memory, slot.id, -1, -1)
        self._free.append(slot.id)

    def _forward(self, slots: list[Slot], new: list[array[int]], rows: list[int]) -> NDArray[np.float32]:
        """Logits (sum of rows, V) of the new tokens, after those that the cache has lost."""
        logits = np.empty((sum(rows), self.info.vocab_size), np.float32)
        done = 0
        self._batch.clear()
        for run in runs(slots, new, rows):
            start = 0
            while start < len(run.tokens):
                taken = self._batch.add(run, start)
                start += taken
                if not taken:
                    done += self._decode(slots, logits[done:])
        self._decode(slots, logits[done:])
        return logits

    def _decode(self, slots: list[Slot], logits: NDArray[np.float32]) -> int:
        """Runs the batch, which holds tokens of ``slots``, and empties it; returns the rows written to ``logits``.

        Makes room at the cost of all other sequences, closed ones first.
        """
        self._log.clear()
        while (status := self._api.llama_decode(self._context, self._batch.struct)) == _NO_ROOM:
            if not self._evict() and not self._preempt(slots):
                needed = sum(len(slot.tokens) for slot in slots) + len(self._batch)
                raise ContextLimit(
                    f"the {len(slots)} sequences of this step need more than the KV cache of {self.cells} tokens; "
                    "run fewer at once, or load with less context for each",
                    max(needed, self.cells + 1),
                    self.cells,
                )
        if status:
            raise EdgeInferError(f"llama.cpp could not decode (status {status}): {self._log.reason()}")
        rows = self._batch.rows
        if rows:
            source = self._api.llama_get_logits(self._context)
            ctypes.memmove(logits.ctypes.data, source, rows * self.info.vocab_size * logits.itemsize)
        self._batch.clear()
        return rows

    def _preempt(self, slots: list[Slot]) -> bool:
        """Drops the longest of the open sequences that wait; its next step computes it anew. False without one."""
        waiting = [slot for slot in self._open.values() if slot.stored and slot.pending is None and slot not in slots]
        if not waiting:
            return False
        self.rewind(max(waiting, key=lambda slot: slot.stored), 0)
        return True


def _kept_as(stored_as: int, kv: str, info: ModelInfo) -> ModelInfo:
    """The name tag with the format of keys and values."""
    exact = info.kv_bytes_per_token
    if stored_as == FLOAT16:
        return replace(info, kv_exact_bytes=exact, kv_reason="" if kv == "exact" else "what llama.cpp does by itself")
    return replace(
        info, kv=kv, kv_reason="asked for", kv_exact_bytes=exact, kv_bytes_per_token=round(exact * KV_SHARE[stored_as])
    )


def _load_model(lib: Library, path: Path, first: Path, gpu_layers: int) -> int:
    params = lib.api.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    lib.log.clear()
    model: int | None = lib.api.llama_model_load_from_file(os.fsencode(first), params)
    if not model:
        raise load_failure(path, lib.log.reason())
    return model


def _new_context(lib: Library, model: int, planned: Plan, threads: int, stored_as: int) -> int | None:
    params = lib.api.llama_context_default_params()
    if stored_as != FLOAT16:
        params.type_k = params.type_v = stored_as
        params.flash_attn_type = _FLASH_ATTENTION  # only that reads values in blocks
    params.n_ctx = planned.cells
    params.n_batch = params.n_ubatch = _BATCH
    params.n_seq_max = planned.sequences
    params.n_outputs_max, params.n_outputs_max_per_seq = planned.outputs, 0
    params.n_threads = params.n_threads_batch = threads or psutil.cpu_count(logical=False) or os.cpu_count() or 1
    params.kv_unified = True
    params.swa_full = True  # else what has left a window could not come back
    lib.log.clear()
    context: int | None = lib.api.llama_init_from_model(model, params)
    return context
