"""Logits of llama.cpp, through its low-level API: the oracle that others wrote."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from edgeinfer.conversion.importance import GgmlTensor


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


def llama_logits(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Teacher-forced logits of every position: (L, V) float32. Keys and values are kept in float32."""
    return _run(path, tokens, None)


def llama_routing(path: Path, tokens: Sequence[int]) -> list[NDArray[np.int32]]:
    """Of each layer with experts, those that each token takes, the best first: (L, used)."""
    found: dict[int, NDArray[np.int32]] = {}

    @llama_cpp.ggml_backend_sched_eval_callback
    def seen(pointer: int, ask: bool, data: ctypes.c_void_p) -> bool:
        tensor = ctypes.cast(pointer, ctypes.POINTER(GgmlTensor)).contents
        name = tensor.name.decode()
        if not name.startswith("ffn_moe_topk-"):
            return not ask
        if not ask:
            used, count, stride = tensor.ne[0], tensor.ne[1], tensor.nb[1] // 4
            flat = ctypes.cast(tensor.data, ctypes.POINTER(ctypes.c_int32))
            rows = np.ctypeslib.as_array(flat, ((count - 1) * stride + used,))
            places = stride * np.arange(count)[:, None] + np.arange(used)
            found[int(name.rpartition("-")[2])] = rows[places].copy()
        return True

    _run(path, tokens, seen)
    return [found[layer] for layer in sorted(found)]


def _run(path: Path, tokens: Sequence[int], seen: Any) -> NDArray[np.float32]:
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {path.name}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(256, len(tokens))
    params.n_threads = params.n_threads_batch = 2
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if seen is not None:
        params.cb_eval = seen
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    try:
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 1
        assert llama_cpp.llama_decode(context, batch) == 0
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        flat = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(tokens) * vocabulary,))
        return flat.reshape(len(tokens), vocabulary).copy()
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
