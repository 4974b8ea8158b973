"""MLX behind the seam: a GGUF file's own model code, a plain cache, and prefixes kept for reuse."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from importlib.metadata import version
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from weakref import WeakSet

import mlx.core as mx
import numpy as np
import psutil

from edgeinfer import ops
from edgeinfer.backends.base import Chunk, ModelInfo
from edgeinfer.backends.discipline import check_length, check_running, check_states
from edgeinfer.backends.mlx_head import PredictionHead, Trace
from edgeinfer.cache.disk import DiskStore
from edgeinfer.cache.formats import EXACT, Policy
from edgeinfer.cache.layout import Layout
from edgeinfer.cache.sequence import CachedSequence, Plan
from edgeinfer.cache.store import PrefixStore
from edgeinfer.errors import BadRequest
from edgeinfer.loading.fit import SCRATCH_ROWS, available_memory
from edgeinfer.loading.loader import Loaded, fingerprint, load
from edgeinfer.loading.stage import StagedForward
from edgeinfer.memory import hand_back_memory
from edgeinfer.nn.batch import Batch, View
from edgeinfer.nn.forward import Forward

STATES = 8
"""Closed sequences of a recurrent model that may stay: each is of use only as a whole."""
SEVERAL_ROWS = 64
"""A step of more rows is part of a prompt, whose buffers are not kept for the tokens that follow."""

LEAST_KEPT = 32 << 20
"""Bytes for closed sequences where one of the whole context takes less."""
CHECKPOINTS = 2048
"""Tokens of a prompt between places that a later one can go on from."""
BEFORE_END = 48
"""Tokens before the end of a prompt where there is another such place."""


class MLXSequence:
    """A sequence of this backend. Between a step and its accept, ``pending`` holds the tokens of the step."""

    def __init__(self, owner: MLXBackend, cached: CachedSequence) -> None:
        self.owner = owner
        self.cached = cached
        self.pending: list[int] | mx.array | None = None
        self.trace: Trace | None = None
        self.closed = False
        self.prompt = 0  # tokens of the prompt it was opened for

    @property
    def length(self) -> int:
        return self.cached.length

    @property
    def nbytes(self) -> int:
        return self.cached.nbytes

    def accept(self, count: int) -> None:
        self.check_usable()
        if self.pending is None:
            raise BadRequest("accept() without a step: call it once after each step", "count")
        size = len(self.pending) if isinstance(self.pending, list) else self.pending.size
        if not 0 <= count <= size:
            raise BadRequest(f"accept({count}): the last chunk held {size} tokens", "count")
        if self.trace is not None:
            self.trace.keep(self.length, count)
        before = self.cached.length
        self.cached.keep(self.pending, count)
        self.pending = None
        if size > SEVERAL_ROWS or before < self.prompt:
            self.owner.remember(self, before)

    def watch(self) -> Trace:
        """Keeps the hidden states of all tokens from now on, for a head that predicts from them."""
        self.trace = self.trace or Trace()
        return self.trace

    def fork(self) -> MLXSequence:
        self.check_usable()
        if self.pending is not None:
            raise BadRequest("fork() between a step and its accept(): accept first")
        return self.owner.adopt(self.cached.fork())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.owner.retire(self)

    def check_usable(self) -> None:
        self.owner.check_running()
        if self.closed:
            raise BadRequest("the sequence is closed: open another one")


class MLXBackend:
    """The engine of this package. Use it from one thread: MLX's streams belong to the thread that made them."""

    def __init__(self, loaded: Loaded, threads: int = 0, forward: Forward | StagedForward | None = None) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._layout = loaded.layout
        self._forward = forward or Forward(loaded.model, loaded.layout.by_kernels or not loaded.layout.seals)
        self._file = loaded.file
        self._running: WeakSet[MLXSequence] = WeakSet()
        self._closed = False
        self.disk: DiskStore | None = None
        self._untidy = 0
        self._threads = threads or psutil.cpu_count(logical=False) or 1
        per_token = loaded.needs.kv_per_token
        kept = max(LEAST_KEPT, loaded.context * per_token) + STATES * loaded.needs.per_sequence
        self._store = PrefixStore(min(kept, available_memory() // 8))
        self.info = ModelInfo(
            name=loaded.name,
            architecture=loaded.architecture,
            backend="mlx",
            device=ops.device(),
            quantization=loaded.quantization,
            vocab_size=loaded.vocab_size,
            context=loaded.context,
            parameters=loaded.parameters,
            weight_bytes=loaded.needs.weights,
            kv_bytes_per_token=per_token,
            kv_budget=max(loaded.context * per_token, available_memory() * 4 // 5),
            kv=loaded.kv.name,
            kv_reason=loaded.kv.reason,
            kv_exact_bytes=sum(shape.bytes_per_token() for shape in loaded.model.kv_shapes),
            lazy=True,
            kernels=f"mlx {version('mlx')}, {ops.paths()['linear']}",
            row_invariant=ops.fused or ops.on_gpu,
        )

    @classmethod
    def load(
        cls, path: Path, context: int = 0, threads: int = 0, kv: str = EXACT.name, kept: Path | None = None
    ) -> MLXBackend:
        """Reads a GGUF file. ``context`` 0 lets model and memory decide; ``threads`` 0 takes the physical cores.

        ``kept``: a folder for keys and values of closed sequences.
        """
        loaded = load(path, context, kv=kv)
        made = cls(loaded, threads)
        if kept is not None and loaded.layout.seals:
            mark = fingerprint(
                path, (loaded.kv.name, made.info.kernels, str(ops.paths()), str(loaded.layout.block_bytes))
            )
            made.disk = DiskStore(kept, mark, loaded.layout)
        return made

    @property
    def head(self) -> PredictionHead | None:
        """What the model predicts further tokens with, where its file holds that."""
        head = getattr(self._model, "next", None)
        return None if head is None else PredictionHead(head, self._threads)

    def in_format(self, kv: Policy) -> MLXBackend:
        """The same model with keys and values in other formats; the weights are shared, and the file stays with this
        one, which is closed last."""
        shapes = self._model.kv_shapes
        layout = Layout.of(kv, shapes)
        needed = replace(
            self._loaded.needs,
            kv_per_token=layout.token_bytes(shapes),
            per_sequence=sum(each.bytes_per_sequence() for each in shapes) + layout.exact_bytes(shapes, SCRATCH_ROWS),
        )
        return MLXBackend(replace(self._loaded, kv=kv, layout=layout, needs=needed, file=None), self._threads)

    @property
    def block(self) -> tuple[int, int] | None:
        """The token to fill in, and how many places a model fills in at once; None where it cannot."""
        mask = getattr(self._model, "mask", None)
        return None if mask is None else (mask, self._model.longest)  # type: ignore[attr-defined]

    def filled(self, state: MLXSequence, tokens: Sequence[int]) -> mx.array:
        """Logits (L, V) of ``tokens`` at their own places behind a sequence, each of which sees all of them. The
        sequence does not change."""
        state.check_usable()
        view = View(0, len(tokens), state.length, state.cached.layers, range(len(tokens)))
        with ops.threads(self._threads):
            return self._model(Batch(mx.array(np.asarray(tokens, np.int32)), [view], whole=True))

    @property
    def layers(self) -> int:
        return len(self._model.kv_shapes)

    def shallow(self, layers: int) -> MLXBackend:
        """The first ``layers`` layers with this model's own head, as a backend beside this one. It shares the weights,
        and the file stays with this one."""
        model = copy(self._model)
        model.kv_shapes, model.blocks = model.kv_shapes[:layers], model.blocks[:layers]
        layout = replace(self._layout, places=self._layout.places[:layers])
        return MLXBackend(replace(self._loaded, model=model, layout=layout, file=None), self._threads)

    @property
    def recorded(self) -> bool:
        """Whether a step is one operation."""
        return self._forward.recorded

    def open(self, tokens: Sequence[int] = ()) -> MLXSequence:
        self.check_running()
        _check_ids(tokens, self.info.vocab_size)
        found = self._store.find(tokens, [each.cached for each in self._running]) if len(tokens) > 1 else None
        if self.disk is not None and len(tokens) > 1:
            found = self.disk.find(tokens, found.length if found else 0) or found
        if found is not None and self._layout.seals and self._layout.pages(found.length):
            self._store.put(found.checkpoint(found.length))  # another turn may begin here: an edit, a second try
        sequence = self.adopt(found or CachedSequence.empty(self._model.kv_shapes, self._layout))
        sequence.prompt = len(tokens)
        return sequence

    def adopt(self, cached: CachedSequence) -> MLXSequence:
        """A running sequence around what is cached."""
        sequence = MLXSequence(self, cached)
        self._running.add(sequence)
        return sequence

    def retire(self, sequence: MLXSequence) -> None:
        """Keeps a closed sequence's memory for prompts that start the same way."""
        self._running.discard(sequence)
        if not self._closed:
            self._store.put(sequence.cached)
            if self.disk is not None:
                self.disk.put(sequence.cached)

    def forget(self) -> None:
        """Lets go of the closed sequences that were kept for their prefixes."""
        self._store.clear()

    def remember(self, sequence: MLXSequence, before: int) -> None:
        """After a slice of a prompt: keeps places that a later prompt may go on from.

        Once pages behind a place are sealed, its latest tokens cannot be had as they were. One place is shortly before
        the prompt's end, which templates render anew.
        """
        cached, after = sequence.cached, sequence.cached.length
        if not self._layout.seals:
            return
        end = sequence.prompt - BEFORE_END if after == sequence.prompt else 0
        for place in {end, after // CHECKPOINTS * CHECKPOINTS}:
            if before < place <= after and self._layout.pages(place) and cached.reusable(place) == place:
                made = cached.checkpoint(place)
                self._store.put(made)
                if self.disk is not None:
                    self.disk.put(made)

    def step(self, chunks: Sequence[Chunk]) -> list[mx.array]:
        self.check(chunks)
        if not chunks:
            return []
        if self._file is not None:
            self._file.check_unchanged()
        views: list[View] = []
        plans: list[Plan | None] = []
        paged = self._sees_pages(chunks)
        for chunk in chunks:
            start, state = (views[-1].stop if views else 0), chunk.state
            stop = start + _count(chunk.tokens)
            wanted = {"none": range(0), "last": range(stop - 1, stop), "all": range(start, stop)}[chunk.rows]
            plans.append(state.cached.plan(stop - start) if paged else None)
            frames = plans[-1].frames if plans[-1] else ()
            views.append(View(start, stop, state.length, state.cached.layers, wanted, frames))
        places = self._layout.places if paged else ()
        trace: list[mx.array] | None = [] if any(chunk.state.trace is not None for chunk in chunks) else None
        with ops.threads(self._threads):
            logits = self._forward(Batch(_joined(chunks), views, trace, places))
        seen = []
        for chunk, view, plan in zip(chunks, views, plans, strict=True):
            chunk.state.cached.commit(plan)
            if trace and chunk.state.trace is not None:
                rows = trace[0] if len(views) == 1 else trace[0][view.start : view.stop]
                chunk.state.trace.fresh = rows
                seen.append(rows)
            chunk.state.pending = chunk.tokens if isinstance(chunk.tokens, mx.array) else list(chunk.tokens)
        borders = accumulate((len(view.wanted) for view in views), initial=0)
        self._tidy(views[-1].stop)
        if seen:
            mx.async_eval(seen)  # type: ignore[no-untyped-call]
        if len(views) == 1:
            return [logits]
        return [logits[start:stop] for start, stop in pairwise(borders)]

    def _sees_pages(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a step has to know of pages. A recorded model's buffers are the same with and without them."""
        if not self._layout.seals:
            return False
        return not self.recorded or not all(chunk.state.cached.is_plain(_count(chunk.tokens)) for chunk in chunks)

    def _tidy(self, rows: int) -> None:
        """Gives back the buffers of a prompt, once the tokens behind it show that they have all been let go."""
        if rows > SEVERAL_ROWS:
            self._untidy = 3
        elif self._untidy:
            self._untidy -= 1
            if not self._untidy:
                mx.clear_cache()
                hand_back_memory()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._store.clear()
        if self.disk is not None:
            self.disk.close()
        if self._file is not None:
            self._file.close()
        for sequence in list(self._running):
            sequence.cached = CachedSequence.empty((), self._layout)
        del self._forward, self._model, self._loaded
        mx.clear_cache()
        hand_back_memory()

    def check_running(self) -> None:
        check_running(self._closed)

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises BadRequest or ContextLimit for a step that cannot be done."""
        self.check_running()
        check_states(self, MLXSequence, chunks)
        for chunk in chunks:
            _check_ids(chunk.tokens, self.info.vocab_size)
            check_length(self.info, chunk.state.length, _count(chunk.tokens))


def _count(tokens: Any) -> int:
    return tokens.size if isinstance(tokens, mx.array) else len(tokens)


def _joined(chunks: Sequence[Chunk]) -> mx.array:
    """The tokens of all chunks: (T,) int32."""
    rows = [
        chunk.tokens.astype(mx.int32)
        if isinstance(chunk.tokens, mx.array)
        else mx.array(np.asarray(chunk.tokens, np.int32))
        for chunk in chunks
    ]
    return rows[0] if len(rows) == 1 else mx.concatenate(rows)


def _check_ids(tokens: Any, vocab_size: int) -> None:
    """Raises BadRequest unless tokens are a row of ids. The values of an mx.array may not be known yet."""
    if isinstance(tokens, mx.array):
        if tokens.ndim != 1 or not mx.issubdtype(tokens.dtype, mx.integer):
            raise BadRequest(f"tokens: expected (L,) whole numbers, found {tokens.dtype} {tokens.shape}", "tokens")
        return
    ids = np.asarray(tokens)
    if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        raise BadRequest(f"tokens: expected a flat row of whole numbers, found {ids.dtype} {ids.shape}", "tokens")
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        worst = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise BadRequest(f"token {worst} is not in the vocabulary: expected 0 to {vocab_size - 1}", "tokens")
