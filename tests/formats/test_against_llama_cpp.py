"""What we accept, llama.cpp accepts too, or the reason is listed here.

The same damaged and odd files go through our reader and, in a child process that may die of them, through llama.cpp:
first its plain GGUF reader, then its model loader with ``vocab_only``.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.errors import EdgeInferError
from edgeinfer.formats.gguf import open_gguf
from tests.formats.craft import DATA, KEYS, STR, TENSORS, U16, U32, array, gguf, sample, scalar, tensor

SEED = 20261130

REASONS = {  # what llama.cpp says when it refuses a file that our reader takes, and why that is right
    r"tensor name \d+ is too long: 64 >= 64": "the format allows 64 bytes; llama.cpp keeps one of them for a NUL",
    r"unknown model architecture": "a sound file; our registry of architectures refuses it",
    r"key not found in model: ": "a sound file; our strict reader of settings and our tokenizer refuse it",
    r"key \S+ has wrong type": "a sound file; our strict reader of settings and our tokenizer refuse it",
    r"unknown tokenizer: ": "a sound file; our tokenizer refuses it",
    r"cannot find tokenizer vocab": "a sound file; our tokenizer refuses it",
    r"illegal split file idx": "llama.cpp opens a split model by its first shard only, we by any",
}
CHILD = """
import ctypes, json, sys
import llama_cpp

lines = []
def log(level, text, data):
    lines.append(text.decode(errors="replace"))
callback = llama_cpp.llama_log_callback(log)
llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
ggml = llama_cpp.llama_cpp._lib  # finds the symbols of the libraries it is linked to as well

class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]

ggml.gguf_init_from_file.restype = ctypes.c_void_p
ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, Params]
ggml.gguf_free.argtypes = [ctypes.c_void_p]
params = llama_cpp.llama_model_default_params()
params.vocab_only = True
for path in map(str.strip, sys.stdin):
    lines.clear()
    print(json.dumps({"path": path}), flush=True)
    context = ggml.gguf_init_from_file(path.encode(), Params(True, None))
    form, said = bool(context), "".join(lines)
    if context:
        ggml.gguf_free(context)
    lines.clear()
    model = llama_cpp.llama_model_load_from_file(path.encode(), params) if form else None
    print(json.dumps({"path": path, "form": form, "model": bool(model), "log": said + "".join(lines)}), flush=True)
    if model:
        llama_cpp.llama_model_free(model)
"""


def verdicts(paths: list[Path]) -> Iterator[dict[str, object]]:
    """llama.cpp's answer for each file; a file that kills the child counts as rejected, and the rest go on."""
    waiting = [str(path) for path in paths]
    while waiting:
        done = subprocess.run(
            [sys.executable, "-c", CHILD], input="\n".join(waiting), capture_output=True, text=True, timeout=300
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert answers, done.stderr
        complete = [answer for answer in answers if "form" in answer]
        yield from complete
        started = answers[-1]["path"]
        if "form" not in answers[-1]:
            yield {"path": started, "form": True, "model": False, "log": f"crashed: {done.stderr[-500:]}"}
        waiting = waiting[waiting.index(started) + 1 :]


def accepted(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Those of the files that our reader takes, written to disk."""
    paths = []
    for name, data in files.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(data)
        try:
            open_gguf(path).close()
        except EdgeInferError:
            path.unlink()
        else:
            paths.append(path)
    return paths


def explained(log: str) -> bool:
    errors = [line for line in log.splitlines() if "error loading model: " in line or "gguf_init" in line]
    return any(re.search(pattern, line) for pattern in REASONS for line in errors)


def damaged(count: int) -> dict[str, bytes]:
    """Copies of the good file with one or two bytes of the header changed, or the end cut or extended."""
    rng = random.Random(SEED)
    good = sample()
    files = {}
    for number in range(count):
        data = bytearray(good.data)
        for _ in range(rng.randint(1, 2)):
            data[rng.randrange(good.data_at)] = rng.choice([rng.randrange(256), 0, 1, 255, 128])
        end = rng.choice([len(data), len(data), len(data) - rng.randrange(200), len(data) + 100])
        files[f"damaged-{number}"] = bytes(data[:end]).ljust(end, b"\0")
    return files


ODD = {
    "good": sample().data,
    "version-2": sample(version=2).data,
    "padded": sample().data + bytes(64),
    "trailing": sample().data + b"trailing" * 100,
    "unpadded end": sample().data[: len(sample().data)],
    "no keys": gguf(),
    "no keys unpadded": gguf(alignment=1),
    "no tensors": gguf(KEYS),
    "no tensors unpadded": gguf(KEYS, alignment=1),
    "empty arrays": gguf([*KEYS, array("x.a", U32, []), array("x.b", STR, [])], TENSORS, DATA),
    "empty string": gguf([*KEYS, scalar("x.a", STR, "")], TENSORS, DATA),
    "odd key": gguf([*KEYS, scalar("Ü key-with spaces", STR, "")], TENSORS, DATA),
    "long key": gguf([*KEYS, scalar("k" * 65_535, U32, 1)], TENSORS, DATA),
    "alignment 1": gguf([*KEYS, scalar("general.alignment", U32, 1)], [tensor("w", [3])], bytes(12), alignment=1),
    "alignment 1 MiB": gguf([*KEYS, scalar("general.alignment", U32, 1 << 20)], [], b""),
    "name of 63": gguf(KEYS, [tensor("w" * 63, [1])], bytes(4)),
    "name of 64": gguf(KEYS, [tensor("w" * 64, [1])], bytes(4)),
    "four dimensions": gguf(KEYS, [tensor("w", [2, 3, 4, 5])], bytes(480)),
    "formats without decoder": gguf(KEYS, [tensor("w", [256], 34), tensor("v", [64], 42, 64)], bytes(82)),
}


def test_llama_cpp_takes_what_we_take(tmp_path: Path) -> None:
    paths = accepted(tmp_path, ODD)
    assert len(paths) == len(ODD)
    kept = accepted(tmp_path, damaged(3000))
    assert len(kept) > 100, f"seed {SEED}: too few to tell anything"
    answers = list(verdicts(paths + kept))
    loaded = sum(bool(answer["model"]) for answer in answers)
    print(f"seed {SEED}: of {len(answers)} files that we take llama.cpp loads {loaded}")
    assert len(answers) == len(paths) + len(kept)
    assert loaded > 100
    assert [answer for answer in answers if not answer["model"] and not explained(str(answer["log"]))] == []


def test_any_shard_will_do_for_us_alone(tmp_path: Path) -> None:
    for number in range(2):
        split = [scalar("split.no", U16, number), scalar("split.count", U16, 2)]
        path = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        path.write_bytes(gguf([*KEYS, *split], [tensor(f"w{number}", [1])], bytes(4)))
    with open_gguf(path) as file:
        assert len(file.files) == 2
    (answer,) = verdicts([path])
    assert not answer["model"]
    assert explained(str(answer["log"])), answer["log"]


@pytest.mark.parametrize("name", ["good", "version-2", "padded"])
def test_the_good_files_load_in_llama_cpp(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(ODD[name])
    (answer,) = verdicts([path])
    assert answer["form"]
    assert answer["model"], answer["log"]
