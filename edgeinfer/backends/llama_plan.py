"""What a model asks of llama.cpp: how many tokens, cells and sequences fit, and its name tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import ModelInfo
from edgeinfer.errors import BadRequest, MemoryLimit, UnsupportedModel
from edgeinfer.memory import free_memory

_DEFAULT_CONTEXT = 8192
_SMALLEST_CONTEXT = 256
_SEQUENCES = 64
_RECURRENT_SEQUENCES = 16  # each has a whole state allocated from the start
_DEVICES = {"CUDA": "cuda", "ROCm": "rocm", "HIP": "rocm", "MTL": "metal", "Metal": "metal", "Vulkan": "vulkan"}
_SIZES = {"Small": "S", "Medium": "M", "Large": "L"}


@dataclass(frozen=True, slots=True)
class Plan:
    context: int  # tokens a sequence
    cells: int  # tokens of all sequences together
    sequences: int
    outputs: int  # rows of logits a decode
    kv_bytes_per_token: int
    recurrent: bool  # some layer keeps a state instead of a cache

    def halved(self, path: Path, reason: str, asked_for: int) -> Plan:
        """Half the context, for a device that could not hold the whole; MemoryLimit where that is no choice of ours."""
        if asked_for or self.context <= _SMALLEST_CONTEXT:
            raise MemoryLimit(
                f"{path.name}: llama.cpp could not make a context of {self.context} tokens ({reason}); "
                "load with less context",
                self.cells * self.kv_bytes_per_token,
                free_memory(),
            )
        return replace(self, context=self.context // 2, cells=self.context // 2)


def plan(
    api: Any, model: Any, metadata: Mapping[str, Any], path: Path, context: int, logits_bytes: int, batch: int
) -> Plan:
    """Sizes for a loaded model; raises UnsupportedModel, BadRequest or MemoryLimit."""
    architecture = metadata["general.architecture"]
    if not api.llama_model_has_decoder(model) or api.llama_model_has_encoder(model):
        raise UnsupportedModel(
            f"{path.name}: {architecture} is an encoder; edgeinfer runs decoder-only models",
            path,
            "general.architecture",
            architecture,
        )
    recurrent = api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
    per_token = 0 if api.llama_model_is_recurrent(model) else kv_bytes_per_token(metadata)
    sequences = _RECURRENT_SEQUENCES if recurrent else _SEQUENCES
    context, cells = fit(context, api.llama_model_n_ctx_train(model), per_token, free_memory())
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    outputs = min(batch, max(sequences, logits_bytes // (4 * vocab_size)))
    return Plan(context, cells, sequences, outputs, per_token, recurrent)


def fit(context: int, trained: int, per_token: int, available: int) -> tuple[int, int]:
    """Tokens a sequence and cells in all.

    ``context`` 0 takes what the model was trained for, at most 8192 and what half the ``available`` bytes hold. Cells
    are twice the context and at least 8192, but no more than an eighth of those bytes holds, nor less than the context.
    """
    if context > trained:
        raise BadRequest(
            f"context={context}: the model was trained for {trained} tokens; ask for at most that", "context"
        )
    holds = available // 2 // per_token if per_token else trained
    needed = context or min(trained, _SMALLEST_CONTEXT)
    if needed > holds:
        raise MemoryLimit(
            f"a context of {needed} tokens needs {needed * per_token >> 20} MiB, this machine can give "
            f"{available // 2 >> 20} MiB; load with less context or a smaller model",
            needed * per_token,
            available // 2,
        )
    context = context or min(trained, _DEFAULT_CONTEXT, holds)
    plenty = max(2 * context, _DEFAULT_CONTEXT)
    return context, max(context, min(plenty, available // 8 // per_token) if per_token else plenty)


def kv_bytes_per_token(metadata: Mapping[str, Any]) -> int:
    """Bytes of float16 keys and values over all layers, from the header."""
    prefix = metadata["general.architecture"]
    layers = metadata[f"{prefix}.block_count"]
    heads = metadata.get(f"{prefix}.attention.head_count", 0)
    kv_heads = metadata.get(f"{prefix}.attention.head_count_kv", heads)
    most_heads = max(heads) if isinstance(heads, list) else heads
    size = metadata[f"{prefix}.embedding_length"] // max(1, most_heads)
    key = metadata.get(f"{prefix}.attention.key_length", size)
    value = metadata.get(f"{prefix}.attention.value_length", size)
    total = sum(kv_heads) if isinstance(kv_heads, list) else kv_heads * layers
    return int(2 * total * (key + value))


def describe(
    api: Any, model: Any, metadata: Mapping[str, Any], path: Path, planned: Plan, gpu_layers: int
) -> ModelInfo:
    name = metadata.get("general.name")
    return ModelInfo(
        name=name if isinstance(name, str) and name else path.stem,
        architecture=metadata["general.architecture"],
        backend="llama.cpp",
        device=_device(api) if gpu_layers else "cpu",
        quantization=_quantization(api.llama_ftype_name(api.llama_model_ftype(model))),
        vocab_size=api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)),
        context=planned.context,
        parameters=api.llama_model_n_params(model),
        weight_bytes=api.llama_model_size(model),
        kv_bytes_per_token=planned.kv_bytes_per_token,
        kernels=f"llama-cpp-python {version('llama-cpp-python')}",
    )


def _device(api: Any) -> str:
    """The kind of GPU that llama.cpp computes on; it names its compiled-in backends as ``CUDA : … | CPU : …``."""
    if not api.llama_supports_gpu_offload():
        return "cpu"
    compiled = api.llama_print_system_info().decode()
    return next((device for name, device in _DEVICES.items() if f"{name} : " in compiled), "gpu")


def _quantization(name: bytes | None) -> str:
    """llama.cpp's name of a file type, as people write it: ``Q4_K - Medium`` is Q4_K_M."""
    text = (name or b"unknown").decode().removeprefix("(guessed) ").removeprefix("all ")
    base, _, size = text.partition(" - ")
    return f"{base}_{_SIZES[size]}" if size in _SIZES else base
