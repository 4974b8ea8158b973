"""Which input channels of a matrix matter: the mean square of what a text sends through them, by llama.cpp's own pass.

The numbers are those of ``llama-imatrix``: quantizers weigh their errors by them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.llama_library import library, load_failure

Importance = dict[str, NDArray[np.float32]]
"""By the name of a matrix: one number a column, with experts one a column of each."""
_F32, _I32 = 0, 26  # ggml types


class GgmlTensor(ctypes.Structure):
    """The start of ``ggml_tensor``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


class Collector:
    """Watches the products of a forward pass."""

    def __init__(self, ggml: Any) -> None:
        self._ggml = ggml
        ggml.ggml_op_name.restype, ggml.ggml_op_name.argtypes = ctypes.c_char_p, (ctypes.c_int,)
        ggml.ggml_backend_tensor_get.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        ggml.ggml_backend_tensor_get.restype = None
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def watch(self, address: int, asking: bool, _: object) -> bool:
        """A ``ggml_backend_sched_eval_callback``: says which results it wants, and is shown them."""
        tensor = GgmlTensor.from_address(address)
        kind = self._ggml.ggml_op_name(tensor.op)
        if kind not in (b"MUL_MAT", b"MUL_MAT_ID"):
            return not asking
        matrix, inputs = (GgmlTensor.from_address(tensor.src[i]) for i in (0, 1))
        wanted = matrix.name.endswith(b".weight") and inputs.type == _F32
        if asking or not wanted:
            return bool(wanted) if asking else True
        name, squares = matrix.name.decode(), np.square(self._read(tensor.src[1], inputs, np.float32), dtype=np.float64)
        if kind == b"MUL_MAT":
            rows = squares.reshape(-1, inputs.ne[0])
            self._add(name, 1, np.zeros(len(rows), np.int64), rows)
        else:  # (tokens, experts of a token or one for all, columns)
            chosen = GgmlTensor.from_address(tensor.src[2])
            ids = self._read(tensor.src[2], chosen, np.int32).reshape(chosen.ne[1], -1)[:, : chosen.ne[0]]
            rows = np.broadcast_to(squares.reshape(len(ids), -1, inputs.ne[0]), (*ids.shape, inputs.ne[0]))
            self._add(name, matrix.ne[2], ids.reshape(-1).astype(np.int64), rows.reshape(-1, inputs.ne[0]))
        return True

    def result(self) -> Importance:
        """Means; an expert that no token reached counts as one that all columns matter to alike."""
        found: Importance = {}
        for name, sums in self._sums.items():
            counts = self._counts[name][:, None]
            found[name] = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32).reshape(-1)
        return found

    def _add(self, name: str, experts: int, chosen: NDArray[np.int64], rows: NDArray[np.float64]) -> None:
        sums = self._sums.setdefault(name, np.zeros((experts, rows.shape[1])))
        counts = self._counts.setdefault(name, np.zeros(experts, np.int64))
        np.add.at(sums, chosen, rows)
        np.add.at(counts, chosen, 1)

    def _read(self, address: int, tensor: GgmlTensor, dtype: type) -> NDArray[Any]:
        """All rows of a tensor, without the gaps of a view."""
        size = tensor.nb[0] * (tensor.ne[0] - 1) + 4 + sum(tensor.nb[i] * (tensor.ne[i] - 1) for i in (1, 2, 3))
        raw = np.empty(size, np.uint8)
        self._ggml.ggml_backend_tensor_get(address, raw.ctypes.data, 0, size)
        shape, strides = tuple(reversed(tensor.ne)), tuple(reversed(tensor.nb))
        return np.lib.stride_tricks.as_strided(raw.view(dtype), shape, strides).copy()


def importance(
    path: Path,
    windows: Sequence[Sequence[int]],
    threads: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Importance:
    """Runs windows of tokens through a GGUF file. Raises BackendUnavailable, and what llama.cpp refuses."""
    lib = library()
    from llama_cpp._ggml import libggml

    collector = Collector(libggml)
    api, longest = lib.api, max(map(len, windows))
    lib.log.clear()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    if not model:
        raise load_failure(path, lib.log.reason())
    params = api.llama_context_default_params()
    callback = api.ggml_backend_sched_eval_callback(collector.watch)
    params.n_ctx = params.n_batch = params.n_ubatch = longest
    params.n_threads = params.n_threads_batch = threads
    params.cb_eval = callback
    context = api.llama_init_from_model(model, params)
    try:
        if not context:
            raise load_failure(path, lib.log.reason())
        for done, window in enumerate(windows):
            api.llama_memory_clear(api.llama_get_memory(context), True)
            tokens = (api.llama_token * len(window))(*window)
            if api.llama_decode(context, api.llama_batch_get_one(tokens, len(window))):
                raise load_failure(path, lib.log.reason())
            on_progress(done + 1, len(windows))
    finally:
        if context:
            api.llama_free(context)
        api.llama_model_free(model)
    return collector.result()
