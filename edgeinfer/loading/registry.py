"""Which architectures there are: the files of ``models``, and whether one of them can run a given file."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar, Protocol

import mlx.core as mx

import edgeinfer.models
from edgeinfer.cache.kv import KVShape
from edgeinfer.cache.state import StateShape
from edgeinfer.errors import ModelError, UnsupportedModel
from edgeinfer.formats.config import Config
from edgeinfer.formats.gguf import GGUFFile
from edgeinfer.nn.batch import Batch
from edgeinfer.nn.tensors import Outline, Tensors

IGNORED = ("context_length", "rope.scaling.finetuned")
"""Settings that change nothing about the computation."""


class Block(Protocol):
    """One layer."""

    def __call__(self, x: mx.array, batch: Batch) -> mx.array:
        """(T, hidden) -> (T, hidden)."""


class Model(Protocol):
    """What every ``models/*.py`` has; the contract is in ``models/__init__.py``."""

    wide: ClassVar[bool]
    kv_shapes: Sequence[KVShape | StateShape]
    blocks: Sequence[Block]

    def __init__(self, config: Config, tensors: Tensors) -> None: ...

    def __call__(self, batch: Batch) -> mx.array: ...


def architectures() -> list[str]:
    """The names that ``general.architecture`` may have; files have an underscore where there is a hyphen."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(edgeinfer.models.__path__))


def build(file: GGUFFile, tensors: type[Tensors] = Tensors, context: int = 0) -> Model:
    """The model of a file, ready to run. With ``Outline`` in place of ``Tensors``, everything but the weights is read.

    ``context``: tokens that a sequence may hold, on which some scalings of RoPE depend; 0: as many as it learned from.

    Raises CorruptFile or UnsupportedModel: an architecture, a setting, a tensor or a codec that is missing or unknown.
    """
    config = Config.from_gguf(file)
    config.context = context
    known = architectures()
    if config.architecture not in known:
        raise config.unsupported("general.architecture", config.architecture, known)
    kind: type[Model] = import_module(f"edgeinfer.models.{config.architecture.replace('-', '_')}").Model
    asked = tensors(file, wide=kind.wide)
    model = kind(config, asked)
    config.refuse_unread(IGNORED)
    for name in asked.left_over():
        raise UnsupportedModel(
            f"{file.path.name}: tensor {name} is not one that {config.architecture} has here", file.path, name
        )
    return model


def unsupported(file: GGUFFile) -> str | None:
    """Why MLX cannot run this file, from its header alone; None if it can."""
    try:
        build(file, Outline)
    except ModelError as error:
        return str(error)
    return None
