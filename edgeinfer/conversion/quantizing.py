"""One GGUF file into another by llama.cpp's quantizer."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.llama_library import library, load_failure
from edgeinfer.conversion.importance import Importance
from edgeinfer.errors import BadRequest

FILE_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21,
    "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29,
    "IQ4_XS": 30, "IQ1_M": 31, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
"""``llama_ftype``: a mix of formats each."""
NEED_IMPORTANCE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K_S")
_PROGRESS = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")


def quantize(
    source: Path,
    target: Path,
    form: str,
    importance: Importance | None,
    threads: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Writes ``target``, which takes its name only when it is whole.

    Raises BadRequest for a form that is unknown or wants an importance matrix, BackendUnavailable, UnsupportedModel.
    """
    if form not in FILE_TYPES:
        raise BadRequest(f"{form!r:.20}: expected one of {', '.join(FILE_TYPES)}", "to")
    if form in NEED_IMPORTANCE and importance is None:
        raise BadRequest(f"{form} needs to know which weights matter: give a text with --text FILE", "text")
    lib = library()
    api = lib.api
    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = FILE_TYPES[form], threads, True
    table = _table(api, importance) if importance else None
    if table is not None:
        params.imatrix = table

    def observe(line: str) -> None:
        if found := _PROGRESS.search(line):
            on_progress(int(found[1]), int(found[2]))

    unfinished = target.with_name(f"{target.name}.part")
    lib.log.clear()
    lib.log.observer = observe
    try:
        failed = api.llama_model_quantize(str(source).encode(), str(unfinished).encode(), ctypes.byref(params))
        if failed:
            raise load_failure(source, lib.log.reason())
        unfinished.replace(target)
    finally:
        lib.log.observer = lambda line: None
        unfinished.unlink(missing_ok=True)


def _table(api: Any, importance: Importance) -> Any:
    """The array that llama.cpp reads until an entry without a name. Its entries point into ``importance``."""
    table = (api.llama_model_imatrix_data * (len(importance) + 1))()
    for entry, (name, values) in zip(table, importance.items(), strict=False):
        numbers = np.ascontiguousarray(values, np.float32)
        importance[name] = numbers
        entry.name, entry.size = name.encode(), numbers.size
        entry.data = numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return table
