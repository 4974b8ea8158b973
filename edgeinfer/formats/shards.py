"""A model split over several files, as ``llama-gguf-split`` and the ``gguf`` package write it.

Each shard says which one it is (``split.no``, from 0), how many there are (``split.count``) and how many tensors they
hold together (``split.tensors.count``); the names end in ``-00001-of-00005.gguf``. Metadata is that of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from edgeinfer.errors import CorruptFile, ModelNotFound
from edgeinfer.formats.header import Header, read_header
from edgeinfer.formats.mapping import MappedFile

MAX_SHARDS = 1024
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_SHARED = (_COUNT, _TENSORS, "general.architecture")  # must not differ where two shards both have it


@dataclass(frozen=True, slots=True)
class Shard:
    file: MappedFile
    header: Header

    @property
    def path(self) -> Path:
        return self.file.path


def open_shards(path: Path) -> list[Shard]:
    """The file, or every shard of the model it belongs to, in order.

    Raises what reading each raises, and CorruptFile that lists missing and foreign shards.
    """
    with ExitStack() as opened:
        given = _open(path, opened)
        count = _whole(given, _COUNT, 1, MAX_SHARDS, default=1)
        shards = [given] if count == 1 else _siblings(given, count, opened)
        opened.pop_all()
        return shards


def _open(path: Path, opened: ExitStack, number: int = 0) -> Shard:
    file = MappedFile(path)
    opened.callback(file.close)
    return Shard(file, read_header(file.data, path, number))


def _siblings(given: Shard, count: int, opened: ExitStack) -> list[Shard]:
    match = _NAME.fullmatch(given.path.name)
    if match is None or int(match["count"]) != count:
        problem = (
            f"one of {count} shards, so its name must end in -00001-of-{count:05d}.gguf or such; give it back its name"
        )
        raise _error(given, _COUNT, problem)
    paths = [given.path.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]
    shards: list[Shard] = []
    missing: list[int] = []
    for number, path in enumerate(paths):
        try:
            shards.append(_open(path, opened, number))
        except ModelNotFound:
            missing.append(number)
    if missing:
        names = paths[missing[0]].name + (" and so on" if len(missing) > 1 else "")
        raise _error(
            given, _COUNT, f"of {count} shards these are missing: {_numbers(missing)} ({names}); download them"
        )
    _check_roles(shards)
    _check_tensors(shards)
    return shards


def _check_roles(shards: list[Shard]) -> None:
    """Each shard must say that it is the one its name says, of the same model as the first."""
    problems = []
    first = shards[0].header.metadata
    for number, shard in enumerate(shards):
        metadata = shard.header.metadata
        if _NO not in metadata or _COUNT not in metadata:
            problems.append(f"{shard.path.name} is no shard")
        elif (says := _whole(shard, _NO, 0, MAX_SHARDS - 1)) != number:
            problems.append(f"{shard.path.name} holds shard {says + 1}")
        else:
            problems += [
                f"{shard.path.name} has {key} {metadata[key]!r:.80}, the first {first[key]!r:.80}"
                for key in _SHARED
                if key in metadata and key in first and metadata[key] != first[key]
            ]
    if problems:
        listed = "; ".join(problems)
        raise _error(shards[0], _NO, f"the {len(shards)} shards are not of one model: {listed}; download these again")


def _check_tensors(shards: list[Shard]) -> None:
    homes: dict[str, Shard] = {}
    for shard in shards:
        for info in shard.header.tensors:
            if info.name in homes:
                problem = f"the tensor is in {homes[info.name].path.name} too"
                raise CorruptFile(shard.path, info.name, info.offset, problem)
            homes[info.name] = shard
    total = _whole(shards[0], _TENSORS, 0, 2**31 - 1, default=len(homes))
    if total != len(homes):
        raise _error(shards[0], _TENSORS, f"{total} tensors announced, {len(homes)} found; download all shards again")


def _whole(shard: Shard, key: str, low: int, high: int, default: int | None = None) -> int:
    value = shard.header.metadata.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise _error(shard, key, f"{value!r:.80}; expected a whole number from {low} to {high}")


def _error(shard: Shard, key: str, problem: str) -> CorruptFile:
    return CorruptFile(shard.path, key, shard.header.offsets.get(key), problem)


def _numbers(indices: Iterable[int]) -> str:
    """Shard numbers, from 1, as ranges: ``2, 4-7``."""
    runs = groupby(enumerate(indices, 1), key=lambda pair: pair[1] - pair[0])
    ranges = [[index + 1 for _, index in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)
