"""Logits of llama.cpp, through its low-level API: the oracle that others wrote."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


def llama_logits(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Teacher-forced logits of every position: (L, V) float32. Keys and values are kept in float32."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {path.name}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(256, len(tokens))
    params.n_threads = params.n_threads_batch = 2
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
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
