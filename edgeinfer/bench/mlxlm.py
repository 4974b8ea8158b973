"""mlx-lm as a subject of the bench, on a checkpoint that ``checkpoint`` wrote.

mlx-lm does not read GGUF, and what it would load of these models on the Hub is another quantization or float16; the
bench gives it the very weights of the file, as float32, the type that MLX's CPU build computes fastest in.
"""

from __future__ import annotations

import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from edgeinfer.bench.plan import WARM_UP, Kind
from edgeinfer.bench.subject import random_tokens
from edgeinfer.errors import BackendUnavailable

if TYPE_CHECKING:
    from edgeinfer.bench.worker import Job

INSTALL = "pip install 'edgeinfer[bench]'"
_SLICE = 2048  # tokens of a prompt in one step: mlx-lm's default
_FILLED = 1024  # tokens by which a depth is filled in


def check_installed() -> None:
    """Raises BackendUnavailable with the command that installs it; imports nothing."""
    if find_spec("mlx_lm") is None:
        raise BackendUnavailable(f"mlx-lm is not installed; run: {INSTALL}", INSTALL)


def prepare() -> None:
    """Imports what loading needs."""
    check_installed()
    import_module("mlx_lm.utils")


def load(job: Job) -> MlxLmSubject:
    """mlx-lm with the checkpoint of a job, its weights read."""
    from threadpoolctl import threadpool_limits

    assert job.checkpoint is not None
    limits = threadpool_limits(job.threads, user_api="blas")
    model, config = import_module("mlx_lm.utils").load_model(job.checkpoint)
    return MlxLmSubject(model, config["vocab_size"], job.context, limits)


class MlxLmSubject:
    """Depths are filled in: its speed depends on how many keys and values there are, not on what they hold."""

    kinds: ClassVar[tuple[Kind, ...]] = ("decode", "prefill", "rows")
    computes_depth: ClassVar[bool] = False

    def __init__(self, model: Any, vocab_size: int, context: int, limits: Any = None) -> None:
        self._mx: Any = import_module("mlx.core")
        self._new_cache: Any = import_module("mlx_lm.models.cache").make_prompt_cache
        self._model, self._limits = model, limits
        self._tokens = random_tokens(context, vocab_size)
        self._depth = 0

    def hold(self, depth: int) -> None:
        self._depth = depth

    def decode(self, count: int) -> float:
        cache = self._filled()
        token = self._array([self._tokens[self._depth]])
        for _ in range(WARM_UP):
            token = self._next(cache, token)
        self._mx.eval(token)
        started = time.perf_counter()
        for _ in range(count):
            following = self._next(cache, token)
            self._mx.async_eval(following)
            token.item()  # one step behind, as mlx-lm generates
            token = following
        token.item()
        return time.perf_counter() - started

    def prefill(self, length: int) -> float:
        cache = self._new_cache(self._model)
        started = time.perf_counter()
        for start in range(0, length - 1, _SLICE):
            self._model(self._array(self._tokens[start : min(start + _SLICE, length - 1)])[None], cache=cache)
            self._mx.eval([each.state for each in cache])
        self._mx.eval(self._model(self._array(self._tokens[length - 1 : length])[None], cache=cache))
        return time.perf_counter() - started

    def verify(self, rows: int) -> float:
        cache = self._filled()
        tokens = self._array(self._tokens[self._depth : self._depth + rows])[None]
        started = time.perf_counter()
        self._mx.eval(self._model(tokens, cache=cache))
        return time.perf_counter() - started

    def close(self) -> None:
        if self._limits is not None:
            self._limits.restore_original_limits()

    def _array(self, tokens: list[int]) -> Any:
        return self._mx.array(tokens, self._mx.int32)

    def _next(self, cache: Any, token: Any) -> Any:
        return self._mx.argmax(self._model(token[None], cache=cache)[:, -1], axis=-1)

    def _filled(self) -> Any:
        """A cache that holds as many tokens as the depth: the first computed, the others small numbers."""
        cache = self._new_cache(self._model)
        if self._depth:
            self._mx.eval(self._model(self._array(self._tokens[:1])[None], cache=cache))
        for layer in cache if self._depth > 1 else ():
            keys, values = layer.state
            for start in range(1, self._depth, _FILLED):
                count = min(_FILLED, self._depth - start)
                layer.update_and_fetch(*(self._of_length(each, count) for each in (keys, values)))
            self._mx.eval(layer.state)
        return cache

    def _of_length(self, like: Any, count: int) -> Any:
        batch, heads, _, size = like.shape
        return self._mx.full((batch, heads, count, size), 0.01, like.dtype)
