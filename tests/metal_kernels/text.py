"""The exact text that MLX gives to Metal's compiler, and what is changed in it so that clang takes it for the CPU."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

PRINTED = re.compile(r"Generated source code for `[^`]*`:\n```\n(.*)\n```\n", re.S)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]")
THREADGROUP = re.compile(r"(?<=[;{}\n])(\s*)threadgroup\s+([\w:<>, ]+?)\s+(\w+)((?:\[[^\]]*\])+)\s*;")
PARAMETER = re.compile(r"\s*(?P<type>.+?)\s*(?P<mark>[*&]?)\s*(?P<name>\w+)\s*$")
INSTANCE = re.compile(r"decltype\((?P<name>\w+)(?P<arguments><[^;]*>)?\)")


def capture(call: Callable[..., object], inputs: Sequence[mx.array]) -> str:
    """What MLX prints to C's stdout when it traces ``call``, which must ask for ``verbose=True``."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "printed", "w+b") as printed:
        kept = os.dup(1)
        try:
            os.dup2(printed.fileno(), 1)
            mx.export_function(str(Path(folder) / "traced"), call, *inputs)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        found = PRINTED.search(printed.read().decode())
    if found is None:
        raise RuntimeError("mlx printed no kernel")
    return found[1]


@dataclass(frozen=True, slots=True)
class Kernel:
    """C++ for clang, and the names of the buffers in their order. ``cuda`` is an entry point for NVIDIA GPUs."""

    source: str
    buffers: tuple[str, ...]
    cuda: str


def rewrite(text: str) -> Kernel:
    """Comments blanked, attributes dropped, threadgroup variables declared through a macro, an entry point added."""
    text = COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    text = ATTRIBUTE.sub("", text)
    count = 0

    def declare(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{found[1]}EI_THREADGROUP({count - 1}, {found[3]}, {found[4]}, {found[2]});"

    while (changed := THREADGROUP.sub(declare, text)) != text:
        text = changed
    instance = INSTANCE.search(text)
    if instance is None:
        raise RuntimeError("no instance of the kernel in the text")
    name = instance["name"]
    signature = text[text.index(f"void {name}(") + len(f"void {name}(") :]
    parameters = [PARAMETER.match(each) for each in signature[: signature.index(") {")].split(",")]
    buffers, arguments, pointers, passed = [], [], [], []
    for parameter in parameters:
        assert parameter is not None
        kind = parameter["type"]
        if parameter["mark"] == "*":
            arguments.append(f"({kind}*)buffers[{len(buffers)}]")
        elif parameter["mark"] == "&":
            arguments.append(f"*({kind}*)buffers[{len(buffers)}]")
        else:
            arguments.append(f"ids->{parameter['name']}")
            passed.append(f"ids.{parameter['name']}")
            continue
        buffers.append(parameter["name"])
        pointers.append(f"{kind}* {parameter['name']}")
        passed.append(f"{'*' if parameter['mark'] == '&' else ''}{parameter['name']}")
    entry = (
        '\n#ifndef EI_STRICT\nextern "C" __attribute__((no_sanitize("thread"))) '
        "void ei_entry(void* const* buffers, const EiIds* ids) {\n"
        f"  {name}{instance['arguments'] or ''}({', '.join(arguments)});\n}}\n#endif\n"
    )
    cuda = (
        f'\nextern "C" __attribute__((nvptx_kernel)) void ei_entry({", ".join(pointers)}) {{\n  const EiIds ids;\n'
        f"  {name}{instance['arguments'] or ''}({', '.join(passed)});\n}}\n"
    )
    return Kernel(text + entry, tuple(buffers), text + cuda)
