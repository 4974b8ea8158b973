"""From a GGUF file to a model that is ready to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from edgeinfer import ops
from edgeinfer.cache.formats import AUTO, EXACT, Policy, policy
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.layout import Layout
from edgeinfer.cache.state import StateShape
from edgeinfer.converted.opening import open_model
from edgeinfer.errors import BadRequest, UnsupportedModel
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.loading.fit import Needs, checked_context, needs
from edgeinfer.loading.registry import Model, build
from edgeinfer.loading.stage import Stage
from edgeinfer.nn.tensors import Outline, Tensors
from edgeinfer.quant.codec import decode

_DIGEST, _SAMPLES = 32, 256
FILE_TYPES = {
    number: name
    for name, number in (
        ("F32", 0), ("F16", 1), ("Q4_0", 2), ("Q4_1", 3), ("Q8_0", 7), ("Q5_0", 8), ("Q5_1", 9), ("Q2_K", 10),
        ("Q3_K_S", 11), ("Q3_K_M", 12), ("Q3_K_L", 13), ("Q4_K_S", 14), ("Q4_K_M", 15), ("Q5_K_S", 16),
        ("Q5_K_M", 17), ("Q6_K", 18), ("BF16", 32),
    )
}  # fmt: skip
"""``general.file_type``, in the numbers of llama.cpp's ``llama_ftype``."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and what its file says of it."""

    model: Model
    name: str
    architecture: str
    quantization: str
    vocab_size: int
    hidden: int
    context: int
    parameters: int
    needs: Needs
    kv: Policy
    layout: Layout
    file: GGUFFile | None
    """Open while the model computes with its memory; whoever holds the model checks and closes it."""


def load(path: Path, context: int = 0, stage: Stage | None = None, kv: str = EXACT.name) -> Loaded:
    """Reads a model, or a share of it. ``context`` 0 lets the model and the memory decide. ``kv``:
    see ``cache.formats.policy``.

    Everything is checked before the first weight is read. Raises ModelNotFound, CorruptFile, UnsupportedModel,
    BadRequest or MemoryLimit.
    """
    with ExitStack() as closing, np.errstate(all="ignore"):
        file = closing.enter_context(open_model(path))
        outline = build(file, Outline)
        formats = kv_policy(file, outline, kv)
        layout = Layout.of(formats, outline.kv_shapes)
        needed = needs(file, outline, layout)
        needed = stage.share(needed) if stage else needed
        chosen = checked_context(file, needed, context)
        vocab_size = _vocabulary(file)
        config = Config.from_gguf(file)
        shared_before = ops.shared_bytes()
        model = build(file, _share(file, stage) if stage else Tensors, context=chosen)
        in_use = ops.shared_bytes() > shared_before
        loaded = Loaded(
            model=model,
            name=config.read("general.name", str, path.stem) or path.stem,
            architecture=config.architecture,
            quantization=_quantization(file, config),
            vocab_size=vocab_size,
            hidden=config.read("embedding_length", int),
            context=chosen,
            parameters=file.parameters,
            needs=needed,
            kv=formats,
            layout=layout,
            file=file if in_use else None,
        )
        if in_use:
            closing.pop_all()
        return loaded


def _share(file: GGUFFile, stage: Stage) -> type[Tensors]:
    """How a process reads its weights. Raises BadRequest where there are fewer layers than processes."""
    layers = len(build(file, Outline).blocks)
    if layers < stage.size:
        raise BadRequest(f"{file.path.name} has {layers} layers: more processes than that have nothing to do", "size")
    return stage.tensors(layers)


def fingerprint(path: Path, more: Sequence[str]) -> bytes:
    """Of a model's weights and tokenizer, from its header and samples of its tensors, and of whatever else counts."""
    total = blake2b("\0".join(more).encode(), digest_size=_DIGEST)
    with open_model(path) as file:
        for key, value in sorted(file.metadata.items()):
            total.update(f"{key}={value!r}\0".encode("utf-8", "surrogatepass"))
        for name, info in file.tensors.items():
            total.update(f"{name} {info.codec.name} {info.shape}\0".encode("utf-8", "surrogatepass"))
            blocks = file.blocks(name).reshape(-1)
            total.update(blocks[:: max(1, len(blocks) // _SAMPLES)].tobytes())
    return total.digest()


def kv_policy(file: GGUFFile, model: Model, wanted: str) -> Policy:
    """The formats of keys and values for a model's layers. Raises BadRequest for one that cannot be had."""
    shapes = model.kv_shapes
    chosen = policy(wanted, shapes, file.parameters, _key_bias(file))
    if not ops.on_gpu or _has_kernels(chosen, shapes):
        return chosen
    if wanted == AUTO:
        exact = policy(EXACT.name, shapes, file.parameters)
        return replace(exact, reason=f"no kernels for {chosen.name} on {ops.device()}")
    if ops.device() != "metal":
        raise BadRequest(f"kv={wanted}: sealed pages have no kernels for {ops.device()}; use exact", "kv")
    return replace(chosen, reason="asked for; no kernels for it here, so it is computed in numpy")


def _has_kernels(chosen: Policy, shapes: Sequence[KVShape | StateShape]) -> bool:
    """Whether all layers that seal have kernels here."""
    layers = zip(chosen.layers, shapes, strict=True)
    return all(form.exact or ops.page_bytes(shape.head_dim, form.widths) for form, shape in layers)


def _key_bias(file: GGUFFile) -> float:
    """The largest norm of a layer's key bias over the median one; 0 without biases."""
    norms = [
        float(np.linalg.norm(decode(info.codec, file.blocks(name))))
        for name, info in file.tensors.items()
        if name.endswith(".attn_k.bias")
    ]
    return max(norms) / max(float(np.median(norms)), 1e-9) if norms else 0.0


def _vocabulary(file: GGUFFile) -> int:
    """Rows of logits; the tokenizer must name as many."""
    rows = file.tensors["token_embd.weight"].rows
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != rows:
        raise UnsupportedModel(
            f"{file.path.name}: tokenizer.ggml.tokens names {len(tokens)} tokens; token_embd.weight has {rows} rows",
            file.path,
            "tokenizer.ggml.tokens",
            len(tokens),
        )
    return rows


def _quantization(file: GGUFFile, config: Config) -> str:
    """What the file calls itself; else the codec that most of its weights are in."""
    named = FILE_TYPES.get(config.read("general.file_type", int, -1))
    if named is not None:
        return named
    weights: dict[str, int] = {}
    for info in file.tensors.values():
        weights[info.codec.name] = weights.get(info.codec.name, 0) + math.prod(info.shape)
    return max(weights, key=lambda name: weights[name]).upper()
