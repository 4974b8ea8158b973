"""The safetensors files of a model's folder, and its JSON files."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import CorruptFile, ModelNotFound, UnsupportedModel
from edgeinfer.formats.cursor import shown
from edgeinfer.formats.safetensors import SafetensorsFile, StoredTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_JSON = 256 << 20  # bytes
MAX_SHARDS = 1024
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapters.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")


def is_folder_model(path: Path) -> bool:
    """Whether a folder looks like converted weights; opening it says whether it is a model."""
    return path.is_dir() and any((path / name).is_file() for name in (CONFIG, INDEX, SINGLE, *_ADAPTERS))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises CorruptFile."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON:
            raise CorruptFile(path, "file", 0, f"{size} bytes of JSON; at most {MAX_JSON} are read")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFile(path, "file", None, f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptFile(path, "file", 0, f"JSON of a {type(found).__name__}; expected an object")
    return found


class Folder:
    """The stored tensors of all shards, by name."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFound, UnsupportedModel (an adapter, pickles) or CorruptFile (what the files contradict)."""
        self.path = path
        self._refuse_others()
        self.config = read_json(path / CONFIG)
        if not self.config:
            raise UnsupportedModel(
                f"{path.name}: config.json is missing or empty; without it the weights say nothing", path
            )
        with ExitStack() as opened:
            self.files = self._open(opened)
            self.tensors: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
            for file in self.files:
                for name, tensor in file.tensors.items():
                    if name in self.tensors:
                        other = self.tensors[name][0].path.name
                        raise CorruptFile(file.path, shown(name), tensor.start, f"the tensor is in {other} too")
                    self.tensors[name] = file, tensor
            opened.pop_all()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def add(self, path: Path) -> list[str]:
        """Another file of the model; the names in it, under which its tensors are found unless a shard has them."""
        file = SafetensorsFile(path)
        self.files.append(file)
        for name, tensor in file.tensors.items():
            self.tensors.setdefault(name, (file, tensor))
        return list(file.tensors)

    def info(self, name: str) -> StoredTensor:
        """Raises UnsupportedModel where there is none."""
        if name not in self.tensors:
            raise UnsupportedModel(f"{self.path.name}: tensor {shown(name)} is missing", self.path, name)
        return self.tensors[name][1]

    def read(self, name: str) -> NDArray[Any]:
        """The numbers as stored; BF16 and the 8-bit floats as the whole numbers of their bits."""
        import numpy as np

        info = self.info(name)
        kinds = {"BOOL": "u1", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}
        kind = kinds.get(info.dtype) or f"<{info.dtype[0].lower()}{int(info.dtype[1:]) // 8}"
        return self.raw(name).view(np.dtype(kind)).reshape(info.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self.tensors[name][0].bytes_of(name)

    def floats(self, name: str) -> NDArray[np.float32]:
        """Numbers of any float type, as float32 (float64 is rounded)."""
        import numpy as np

        kind, stored = self.info(name).dtype, self.read(name)
        if kind == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if kind in ("F64", "F32", "F16"):
            return stored.astype(np.float32)
        raise UnsupportedModel(f"{self.path.name}: {shown(name)} is of {kind}; expected floats", self.path, name, kind)

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _refuse_others(self) -> None:
        path = self.path
        there = {entry.name for entry in path.iterdir()}
        if not any(name.endswith(".safetensors") and name not in _ADAPTERS for name in there):
            if adapters := sorted(there.intersection(_ADAPTERS)):
                raise UnsupportedModel(
                    f"{path.name}: {adapters[0]}: an adapter (LoRA), not a model; merge it into its base model first",
                    path, adapters[0],
                )  # fmt: skip
            if pickles := sorted(there.intersection(_PICKLES)):
                raise UnsupportedModel(
                    f"{path.name}: {pickles[0]}: Python pickles are never opened, they can run code; "
                    "save the model as safetensors", path, pickles[0],
                )  # fmt: skip
            raise ModelNotFound(f"{path}: no .safetensors and no .gguf file in it")

    def _open(self, opened: ExitStack) -> list[SafetensorsFile]:
        if (self.path / INDEX).is_file():
            return self._open_indexed(opened)
        names = sorted(each.name for each in self.path.glob("*.safetensors") if each.name not in _ADAPTERS)
        if SINGLE in names:
            names = [SINGLE]
        if len(names) > 1:
            raise UnsupportedModel(f"{self.path.name}: {len(names)} safetensors files and no {INDEX}", self.path, INDEX)
        return [_opened(self.path / names[0], opened)]

    def _open_indexed(self, opened: ExitStack) -> list[SafetensorsFile]:
        """Every shard that the index names; each must hold the tensors that it says, and no others."""
        index = self.path / INDEX
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise CorruptFile(index, "weight_map", None, "expected the file name of each tensor")
        names = sorted(set(places.values()))
        for name in names:
            if not name.endswith(".safetensors") or Path(name).name != name or "\\" in name or "\0" in name:
                problem = f"names {shown(name)!r}; expected a .safetensors file in the same folder"
                raise CorruptFile(index, "weight_map", None, problem)
        if len(names) > MAX_SHARDS:
            raise CorruptFile(index, "weight_map", None, f"{len(names)} files; at most {MAX_SHARDS} are opened")
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            problem = f"of {len(names)} shards {len(missing)} are missing ({shown(missing[0])}); download them"
            raise CorruptFile(index, "weight_map", None, problem)
        files = [_opened(self.path / name, opened) for name in names]
        for file in files:
            wanted = {tensor for tensor, name in places.items() if name == file.path.name}
            if strange := sorted(wanted ^ file.tensors.keys()):
                relation = "lacks" if strange[0] in wanted else "holds"
                problem = f"{relation} {shown(strange[0])} against {INDEX}: it is a shard of another model"
                raise CorruptFile(file.path, "header", 8, problem)
        return files


def _opened(path: Path, opened: ExitStack) -> SafetensorsFile:
    file = SafetensorsFile(path)
    opened.callback(file.close)
    return file
