"""From a row of ``KERNELS`` to a call of ``mx.fast.metal_kernel``: the text put together, the inputs checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx

from edgeinfer.metal_kernels.specs import KERNELS, KernelSpec

FOLDER = Path(__file__).parent
LEAST = 8
"""Elements from which on MLX passes an input in the ``device`` address space."""
Template: TypeAlias = Sequence[tuple[str, int | bool | mx.Dtype]]

_INCLUDE = re.compile(r'#include "(.+)"')


@cache
def text(name: str) -> tuple[str, str]:
    """Header and body of a kernel. Our own headers are put in where they are included; lines keep their names."""
    path = FOLDER / f"{name}.metal"
    seen: set[Path] = set()
    header, body = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := _INCLUDE.match(line):
            header += _expanded(FOLDER / "include" / found[1], seen)
            body = [f'#line {number + 1} "{path.name}"']
        else:
            body.append(line)
    return "\n".join(header) + "\n", "\n".join(body) + "\n"


def _expanded(path: Path, seen: set[Path]) -> list[str]:
    if path in seen:
        return []
    seen.add(path)
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        beside = path.parent / found[1] if (found := _INCLUDE.match(line)) else None
        if beside is not None and beside.name != "host.h":  # for compilers without Metal
            lines += [*_expanded(beside, seen), f'#line {number + 1} "{path.name}"']
        elif line != "#pragma once":
            lines.append(line)
    return lines


@cache
def _kernel(name: str, make: Callable[..., Any]) -> Any:
    spec = KERNELS[name]
    header, body = text(name)
    inputs, outputs = list(spec.inputs), list(spec.outputs)
    return make(name=f"edgeinfer_{name}", input_names=inputs, output_names=outputs, source=body, header=header)


def launch(
    name: str,
    inputs: Sequence[mx.array],
    template: Template,
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[mx.Dtype],
) -> list[mx.array]:
    """One launch, lazy as every operation of MLX. ``grid`` counts threads."""
    spec = KERNELS[name]
    if tuple(key for key, _ in template) != spec.template:
        raise ValueError(f"{name}: template {[key for key, _ in template]}; expected {list(spec.template)}")
    made: list[mx.array] = _kernel(name, mx.fast.metal_kernel)(
        inputs=[_checked(spec, *each) for each in zip(spec.inputs, inputs, strict=True)],
        template=list(template),
        grid=grid,
        threadgroup=threadgroup,
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
    )
    return made


def _checked(spec: KernelSpec, name: str, array: mx.array) -> mx.array:
    if name in spec.scalars:
        if array.ndim:
            raise ValueError(f"{spec.name}: {name} has shape {array.shape}; expected a scalar")
        return array
    if array.size >= LEAST:
        return array
    if name not in spec.padded:
        raise ValueError(f"{spec.name}: {name} has {array.size} elements; expected at least {LEAST}")
    return mx.concatenate([array.reshape(-1), mx.zeros(LEAST - array.size, array.dtype)])
