"""llama.cpp's own tokenizer on the same file, through its C functions."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType

import llama_cpp

_QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))


class LlamaVocabulary:
    """A vocabulary that llama.cpp read; no weights."""

    def __init__(self, path: Path) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, f"llama.cpp refuses {path.name}"
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.add_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)

    def encode(self, text: str, special: bool = False, add_bos: bool = False) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, room, add_bos, special)
        assert count >= 0
        return list(ids[:count])

    def decode(self, ids: list[int], special: bool = True) -> bytes:
        given = (llama_cpp.llama_token * len(ids))(*ids)
        room = 256 * len(ids) + 64
        text = ctypes.create_string_buffer(room)
        count = llama_cpp.llama_detokenize(self._vocab, given, len(ids), text, room, False, special)
        assert count >= 0
        return text.raw[:count]

    def piece(self, index: int) -> bytes:
        text = ctypes.create_string_buffer(1024)
        count = llama_cpp.llama_token_to_piece(self._vocab, index, text, 1024, 0, True)
        assert count >= 0
        return text.raw[:count]

    def end_ids(self) -> frozenset[int]:
        return frozenset(index for index in range(self.size) if llama_cpp.llama_vocab_is_eog(self._vocab, index))

    def __enter__(self) -> LlamaVocabulary:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        llama_cpp.llama_model_free(self._model)
